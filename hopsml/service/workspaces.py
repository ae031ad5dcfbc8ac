"""Code that was uploaded: by its content, unpacked once, and what of it an application is started with.

<root>/workspaces/<sha256>/      as it was in the zip, for this user alone
<root>/jobs/<job>/job.yaml       the job file, naming that folder
"""

from __future__ import annotations

import ast
import contextlib
import errno
import hashlib
import io
import lzma
import os
import shutil
import stat
import tempfile
import zipfile
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path

from hopsml.errors import ArgumentError, ServiceError
from hopsml.profiles import Profile
from hopsml.service import job_trace
from hopsml.service import spec as specs
from hopsml.service.driver import sealed_secrets, slot_requests
from hopsml.service.engine import SubmitOrder
from hopsml.service.lifecycle import TaskLaunch
from hopsml.service.render import spark_submit
from hopsml.service.spec import JobSpec, Task
from hopsml.service.store import JobRow
from hopsml.storage import durable, urls
from hopsml.submission import SubmissionPlan, shipping

MOST_BYTES = 64 << 20  # of a zip
MOST_UNPACKED_BYTES = 512 << 20
MOST_FILES = 10_000
LAUNCHES_OF_A_TRY = 1000
_LEFT_OUT = {".git", ".hopsml", ".venv", "__pycache__", "node_modules", ".ipynb_checkpoints", ".mypy_cache"}


SecretValues = Callable[[str, Sequence[str]], Mapping[str, str]]


class Workspaces:
    """All below one folder, which only this user may read."""

    def __init__(self, root: Path, project_url: str, secrets: SecretValues, archives: Sequence[str] = ()) -> None:
        """``project_url``: where the runs of all jobs lie; ``secrets``: an owner's, by name; ``archives``: URLs of stores
        below which packed environments may lie.
        """
        self._root, self._project_url, self._secrets, self._archives = root, project_url, secrets, archives
        for name in ("workspaces", "jobs"):
            durable.make_folder(root / name)
            (root / name).chmod(0o700)  # whatever the umask

    def put(self, content: bytes) -> str:
        """Store a zip's files on the disk; returns the digest by which they are known.

        Files that are there already are compared with those of the zip, and replaced where one differs. Raises
        ArgumentError for a zip that is not safe.
        """
        digest = hashlib.sha256(content).hexdigest()
        folder = self._root / "workspaces"
        target = folder / digest
        if target.is_dir():
            self.folder(digest)
            if _has_files(content, target):
                durable.sync_file(folder)  # whoever has stored them may not have come so far
                return digest
        fresh = Path(tempfile.mkdtemp(dir=folder, prefix="new-"))
        try:
            _unpack(content, fresh)
            for parent, _, _ in os.walk(fresh):
                os.chmod(parent, 0o700)
            durable.sync_tree(fresh)
            with tempfile.TemporaryDirectory(dir=folder, prefix="gone-", ignore_cleanup_errors=True) as aside:
                with contextlib.suppress(FileNotFoundError):
                    target.rename(Path(aside, digest))
                fresh.rename(target)
            durable.sync_file(folder)
        except OSError:
            if not target.is_dir():  # somebody else was quicker
                raise
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        return digest

    def jobs(self) -> dict[str, int]:
        """Jobs whose files are here, by their ids, with their serials."""
        with os.scandir(self._root / "jobs") as entries:
            found = {entry.name: entry.name.rpartition("-")[2] for entry in entries}
        return {job: int(serial) for job, serial in found.items() if serial.isdecimal()}

    def remove_job(self, job: str) -> bool:
        """Delete the files of one job; False where there are none."""
        folder = self._root / "jobs" / job
        is_there = folder.is_dir()
        shutil.rmtree(folder, ignore_errors=True)
        return is_there

    def remove_unused(self, in_use: Callable[[], Container[str]], before_s: float) -> int:
        """Delete code that is not in use and was uploaded before a time, in seconds since 1970.

        Args:
            in_use: Returns the digests of code in use; called after the candidates were chosen.
            before_s: Newer code waits for the job that names it.

        Returns:
            How many workspaces were deleted.
        """
        with os.scandir(self._root / "workspaces") as entries:
            old = [entry.name for entry in entries if entry.stat(follow_symlinks=False).st_mtime < before_s]
        needed = in_use() if old else ()
        unused = [name for name in old if name not in needed]
        for name in unused:
            folder = self._root / "workspaces" / name
            aside = folder.with_name(f"gone-{name}")  # whoever uploads the same now finds none, and not half of it
            if not name.startswith("gone-"):
                folder.rename(aside)
            shutil.rmtree(aside if aside.exists() else folder, ignore_errors=True)
        return len(unused)

    def missing(self, spec: JobSpec, digest: str) -> list[str]:
        """Scripts and functions of a job that its code does not have, each with what is wrong. Raises as ``folder`` does."""
        folder = self.folder(digest)
        return [problem for name, task in spec.tasks.items() if (problem := _missing(folder, name, task))]

    def folder(self, digest: str) -> Path:
        """Where the files of a workspace lie. Raises ServiceError where they are not here."""
        found = self._root / "workspaces" / digest
        if not digest or not found.is_dir():
            raise ServiceError(f"the code of the job ({digest[:12] or 'none'}) is not on this server: submit it again")
        with contextlib.suppress(OSError):  # a disk that is read only
            os.utime(found)  # somebody is about to need it: it counts as new again
        return found

    def check_archives(self, spec: JobSpec) -> None:
        """Raise ArgumentError for a packed environment on a store that is not allowed."""
        for task in spec.tasks.values():
            if task.environment is not None and task.environment.archive is not None:
                shipping.check_allowed(task.environment.archive, self._archives)

    def order(
        self, row: JobRow, spec: JobSpec, launch: TaskLaunch, profile: Profile, prefix: str, slots: int = 0
    ) -> SubmitOrder:
        """How an application of a job is submitted; its files are looked at when its turn comes.

        ``slots``: with how many workers an elastic task begins; 0 for one that is not.
        """
        own = own_name(row.id, prefix)
        # Each try, and each launch in it, is a further attempt at one application: its runs go on from their checkpoints.
        variables = {
            "HOPSML_APPLICATION_ID": f"{own}-{launch.task}",
            "HOPSML_APPLICATION_ATTEMPT": str((row.tries - 1) * LAUNCHES_OF_A_TRY + launch.number),
            "HOPSML_JOB_TAG": launch.tag,
            "HOPSML_JOB_FOLDER": urls.join(self._project_url, "Jobs", own, str(row.tries)),
            "HOPSML_PROJECT_URL": self._project_url,
            **job_trace.launched(row, launch),
        }

        if slots:
            variables[slot_requests.FIRST] = str(slots)
        if spec.secrets:
            variables[sealed_secrets.KEY] = sealed_secrets.new_key()

        def plan() -> SubmissionPlan:
            self.check_archives(spec)  # the job may have been stored under other rules
            named = spec.model_copy(update={"workspace": str(self.folder(row.workspace))})
            path = self._root / "jobs" / row.id / "job.yaml"
            path.parent.mkdir(mode=0o700, exist_ok=True)
            path.parent.chmod(0o700)
            path.write_text(specs.dump(named))
            path.chmod(0o600)
            if spec.secrets:
                sealed_secrets.put(variables, self._secrets(row.owner, spec.secrets))
            most = {launch.task: slots} if slots and not profile.grows else {}
            return spark_submit.plans(named, path, profile, f"{prefix},{launch.tag}", variables, most)[launch.task]

        return SubmitOrder(launch.tag, plan, variables)


def own_name(job: str, prefix: str) -> str:
    """What the applications and runs of a job are called first, on any service; ``prefix``: that of its service's tags."""
    return f"{job}-{prefix.rpartition('-')[2]}"


def pack(folder: Path) -> bytes:
    """A folder's files as a zip, the same bytes for the same files. Raises ArgumentError where it is too large."""
    found = sorted(_files(folder))
    total = sum(path.stat().st_size for path in found)
    if len(found) > MOST_FILES or total > MOST_UNPACKED_BYTES:
        raise ArgumentError(
            f"workspace {folder} has {len(found)} files of {total >> 20} MiB; at most {MOST_FILES} files of "
            f"{MOST_UNPACKED_BYTES >> 20} MiB are uploaded: keep data on the store, and name a folder with code alone"
        )
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in found:
            entry = zipfile.ZipInfo(path.relative_to(folder).as_posix())
            entry.external_attr = (0o755 if os.access(path, os.X_OK) else 0o644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, path.read_bytes())
    content = packed.getvalue()
    if len(content) > MOST_BYTES:
        raise ArgumentError(
            f"workspace {folder} packs to {len(content) >> 20} MiB; at most {MOST_BYTES >> 20} MiB are uploaded: keep data "
            "on the store, and name a folder with code alone"
        )
    return content


def _files(folder: Path) -> Iterator[Path]:
    """Plain files; what tools keep, hidden folders and links to elsewhere are left out."""
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in _LEFT_OUT and not name.startswith(".")]
        for name in names:
            path = Path(parent, name)
            if path.is_file() and not path.is_symlink() and not name.endswith(".pyc"):
                yield path


def _has_files(content: bytes, folder: Path) -> bool:
    """True if all files of a zip that was unpacked here before are as they were; others may lie beside them."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for entry in archive.infolist():
            path = folder / entry.filename
            if entry.is_dir():
                continue
            if not path.is_file() or path.is_symlink() or path.stat().st_size != entry.file_size:
                return False
            with archive.open(entry) as source, open(path, "rb") as file:
                while piece := source.read(1 << 20):
                    if file.read(len(piece)) != piece:
                        return False
    return True


def _unpack(content: bytes, target: Path) -> None:
    """Raises ArgumentError for what is no zip, is too large, or would write elsewhere."""
    if len(content) > MOST_BYTES:
        raise ArgumentError(f"the zip has {len(content) >> 20} MiB; at most {MOST_BYTES >> 20} MiB are taken")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir()]
            if len(entries) > MOST_FILES:
                raise ArgumentError(f"the zip has {len(entries)} files; at most {MOST_FILES} are taken")
            left = MOST_UNPACKED_BYTES
            for entry in entries:
                left = _unpack_one(archive, entry, target, left)
    except (
        zipfile.BadZipFile,
        NotImplementedError,
        RuntimeError,
        EOFError,
        ValueError,
        lzma.LZMAError,
        OSError,
    ) as error:  # damaged, unknown method, encrypted; names that no folder can hold, or twice
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
            raise ServiceError(f"the workspace cannot be kept: {error.strerror}; make room at the server") from error
        raise ArgumentError(f"the workspace is no zip that can be read: {error}") from error


def _unpack_one(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, target: Path, left: int) -> int:
    """One file; how many bytes may still come. What the zip says of its sizes is not believed."""
    path = target / entry.filename
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if not path.resolve().is_relative_to(target.resolve()) or kind not in (0, stat.S_IFREG) or "\0" in entry.filename:
        raise ArgumentError(f"the zip has {entry.filename[:100]!r}, which is no plain file below it: leave it out")
    path.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(entry) as source, open(path, "xb") as file:
        while piece := source.read(1 << 20):
            left -= len(piece)
            if left < 0:
                raise ArgumentError(
                    f"the zip unpacks to more than {MOST_UNPACKED_BYTES >> 20} MiB: keep data elsewhere"
                )
            file.write(piece)
    path.chmod(0o700 if (entry.external_attr >> 16) & 0o100 else 0o600)
    return left


def _missing(folder: Path, name: str, task: Task) -> str:
    """What is wrong with the file, or the function, that a task names; "" where nothing is."""
    if task.command is not None:
        return ""
    (named,) = task.files()
    kind = "script" if task.script is not None else "function"
    file = (folder / named).resolve()
    if not file.is_file() or not file.is_relative_to(folder.resolve()):
        return f"tasks.{name}.{kind}: there is no file {named!r} in the uploaded code"
    function = (task.function or "").rpartition(":")[2]
    if function and not _binds(folder / named, function):
        return f"tasks.{name}.function: {named} has no function {function!r}"
    return ""


def _binds(file: Path, name: str) -> bool:
    """Whether a module may have this name: where it cannot be told, it may."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: of expressions that are too deep
        return True
    imports_all = any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in ast.walk(tree))
    return imports_all or any(
        getattr(node, "name", None) == name
        or getattr(node, "id", None) == name
        or getattr(node, "asname", None) == name
        for node in ast.walk(tree)
    )
