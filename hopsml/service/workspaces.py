"""Storage of uploaded code, addressed by its content, and creation of the submissions that use it.

<root>/workspaces/<sha256>/      unpacked files of a zip, readable by this user alone
<root>/uploads/<user>/<sha256>   "bytes entries" of a workspace that a user has uploaded; <user> is a digest
<root>/jobs/<job>/job.yaml       the job file, naming that folder
"""

from __future__ import annotations

import ast
import contextlib
import errno
import hashlib
import io
import logging
import lzma
import os
import shutil
import stat
import tempfile
import threading
import time
import zipfile
import zlib
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path

from hopsml.core import tracing
from hopsml.core.profiles import Profile
from hopsml.errors import ArgumentError, ServiceError
from hopsml.service import spec as specs
from hopsml.service import upload_selection
from hopsml.service.driver import driver_requests
from hopsml.service.engine import SubmitOrder
from hopsml.service.lifecycle import TaskLaunch
from hopsml.service.render import spark_submit
from hopsml.service.spec import JobSpec, Task
from hopsml.service.store import JobRow
from hopsml.storage import durable, trust, urls
from hopsml.submission import SubmissionPlan, shipping


def trace_context(row: JobRow) -> str:
    """Return the trace context of a job, which stays the same when the service is restarted.

    It is derived from the job's id and submission time.
    """
    return tracing.context_of_name(f"{row.id} {row.submitted_s!r}")


def record_submission(row: JobRow, began_s: float) -> None:
    """Record the submission span of a job that was stored by this request, if tracing is on.

    Nothing is recorded for a job that was stored before ``began_s``, as its trace exists already.

    Args:
        row: The stored job.
        began_s: Start of the request that submits the job, in seconds since 1970.
    """
    if tracing.is_on() and row.submitted_s == began_s:
        tracing.record_span(
            "submit", trace_context(row), "", began_s, time.time(), job=row.id, owner=row.owner, queue=row.queue
        )


def trace_variables(row: JobRow, launch: TaskLaunch) -> dict[str, str]:
    """Return the environment variables with which a task's driver continues the trace of its job.

    For the first launch of the first try, record the span of the wait in the queue. The result is empty if tracing is
    off.

    Args:
        row: The job that the task belongs to.
        launch: The launch that is about to be submitted.
    """
    if not tracing.is_on():
        return {}
    context, now = trace_context(row), time.time()
    if row.tries == 1 and launch.number == 1:
        tracing.record_span(
            "queued", tracing.child_context(context), context, row.submitted_s, now, job=row.id, task=launch.task
        )
    return tracing.variables(context, with_headers=False)


MOST_BYTES = 64 << 20  # size of a zip
MOST_UNPACKED_BYTES = 512 << 20
MOST_FILES = 10_000
MOST_LISTED = 100_000  # entries of the zip's list that are read; some may belong to zips within it
_ENTRY = b"PK\x01\x02"  # signature of each entry of that list
MOST_FOLDERS, MOST_DEPTH = 5000, 50  # limits of a workspace
MOST_OF_A_USER_BYTES, MOST_OF_A_USER_ENTRIES = (
    4 << 30,
    500_000,
)  # limits of all workspaces that one user uploaded: bytes; files and folders
LAUNCHES_OF_A_TRY = 1000
SHARED = "Workspaces"  # folder of the project with the folders that the tasks of jobs share

log = logging.getLogger(__name__)

SecretValues = Callable[[str, Sequence[str]], Mapping[str, str]]


class Workspaces:
    """Uploaded code and job files, all below one folder that only this user may read."""

    def __init__(self, root: Path, project_url: str, secrets: SecretValues, archives: Sequence[str] = ()) -> None:
        """Create the folders.

        Args:
            root: Folder of the files.
            project_url: Folder of shared storage for the runs of all jobs.
            secrets: Returns an owner's secrets by name.
            archives: URLs below which packed environments may be stored.
        """
        self._root, self._project_url, self._secrets, self._archives = root, project_url, secrets, archives
        self._lock = threading.Lock()  # guards the counts of users' uploads
        for name in ("workspaces", "uploads", "jobs"):
            durable.make_folder(root / name)
            (root / name).chmod(0o700)  # regardless of the umask

    def store_zip(self, content: bytes, user: str = "") -> str:
        """Store a zip's files on the disk; return their digest.

        Existing files are compared with those of the zip, and replaced if one differs.

        Args:
            content: The zip.
            user: Name of the user who uploads it.

        Raises:
            ArgumentError: The zip is not safe, or the user's uploads that are still needed are too large.
            ServiceError: The file system is full or not writable.
        """
        digest = hashlib.sha256(content).hexdigest()
        folder = self._root / "workspaces"
        target = folder / digest
        if target.is_dir():
            with self._lock:
                self._count(user, digest, target)
            with contextlib.suppress(ServiceError):  # removed as unused at this moment
                self.folder(digest)
            if _has_files(content, target):
                durable.sync_file(folder)  # the upload that stored them may have failed before this step
                return digest
        fresh = Path(tempfile.mkdtemp(dir=folder, prefix="new-"))
        try:
            unpack_zip(content, fresh)
            for parent, _, _ in os.walk(fresh):
                os.chmod(parent, 0o700)
            durable.sync_tree(fresh)
            with self._lock:
                self._count(user, digest, fresh)
                with tempfile.TemporaryDirectory(dir=folder, prefix="gone-", ignore_cleanup_errors=True) as aside:
                    with contextlib.suppress(FileNotFoundError):
                        target.rename(Path(aside, digest))
                    fresh.rename(target)
            durable.sync_file(folder)
        except OSError:
            if not target.is_dir():  # another upload of the same code was faster
                raise
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        return digest

    def _count(self, user: str, digest: str, folder: Path) -> None:
        """Add a workspace to a user's uploads. Raises ArgumentError if these become too large together.

        Removed workspaces are not counted. A workspace that several users have uploaded counts for each of them.
        """
        own = self._root / "uploads" / hashlib.sha256(user.encode()).hexdigest()[:32]
        own.mkdir(mode=0o700, exist_ok=True)
        if (own / digest).is_file():
            return
        entries = [path.lstat() for path in folder.rglob("*")]
        sizes, counts = [sum(entry.st_size for entry in entries)], [len(entries)]
        for marker in own.iterdir():
            if not (self._root / "workspaces" / marker.name).is_dir():
                marker.unlink(missing_ok=True)
                continue
            size, count = marker.read_text().split()
            sizes.append(int(size))
            counts.append(int(count))
        if sum(sizes) > MOST_OF_A_USER_BYTES or sum(counts) > MOST_OF_A_USER_ENTRIES:
            raise ArgumentError(
                f"the code of {len(sizes) - 1} workspaces that {user or 'this user'} has uploaded, and of this one, has "
                f"{sum(counts)} files and folders of {sum(sizes) >> 20} MiB; at most {MOST_OF_A_USER_ENTRIES} of "
                f"{MOST_OF_A_USER_BYTES >> 20} MiB can be stored; delete jobs that have ended, with hopsml jobs rm, and "
                "upload only code"
            )
        (own / digest).write_text(f"{sizes[0]} {counts[0]}")

    def jobs(self) -> dict[str, int]:
        """Return the serials of the jobs that have files here, by job id."""
        with os.scandir(self._root / "jobs") as entries:
            found = {entry.name: entry.name.rpartition("-")[2] for entry in entries}
        return {job: int(serial) for job, serial in found.items() if serial.isdecimal()}

    def remove_job(self, job: str) -> bool:
        """Delete the files of one job; return False if there are none."""
        folder = self._root / "jobs" / job
        is_there = folder.is_dir()
        shutil.rmtree(folder, ignore_errors=True)
        return is_there

    def remove_unused(self, in_use: Callable[[], Container[str]], before_s: float) -> int:
        """Delete code that is not in use and was uploaded before a time, in seconds since 1970.

        Args:
            in_use: Returns the digests of code in use; called after the candidates were chosen.
            before_s: Newer code is retained for the job that will refer to it.

        Returns:
            The number of workspaces that were deleted.
        """
        with os.scandir(self._root / "workspaces") as entries:
            old = [entry.name for entry in entries if entry.stat(follow_symlinks=False).st_mtime < before_s]
        needed = in_use() if old else ()
        unused = [name for name in old if name not in needed]
        return sum(self._remove_one(self._root / "workspaces" / name, before_s) for name in unused)

    @staticmethod
    def _remove_one(folder: Path, before_s: float) -> bool:
        """Delete unpacked code; return False if it was looked up since ``before_s``, and is therefore retained."""
        aside = folder
        if not folder.name.startswith("gone-"):
            aside = folder.with_name(f"gone-{folder.name}")  # an upload of the same code must not find a part of it
            folder.rename(aside)
            if aside.stat().st_mtime >= before_s:  # a job that is being submitted has found it before the rename
                with contextlib.suppress(OSError):  # the same code was uploaded again in between
                    aside.rename(folder)
                    return False
        shutil.rmtree(aside, ignore_errors=True)
        return True

    def missing(self, spec: JobSpec, digest: str) -> list[str]:
        """Return the scripts and functions of a job that are missing in its code, each with an explanation.

        Raises:
            ServiceError: The code is not on this server.
        """
        return missing_in_folder(self.folder(digest), spec)

    def folder(self, digest: str) -> Path:
        """Return a workspace's folder, and renew its time of use. Raises ServiceError if it is not on this server."""
        found = self._root / "workspaces" / digest
        try:
            is_there = bool(digest) and found.is_dir()
            if is_there:
                os.utime(found)  # a job is about to need it: renew its time, so that it is not removed as unused
        except FileNotFoundError:  # removed as unused at this moment
            is_there = False
        except OSError:  # a file system that is read only
            pass
        if not is_there:
            which = f"with the digest {digest[:12]} is not on" if digest else "was deleted from"
            raise ServiceError(f"the code of the job {which} this server; submit the job again")
        return found

    def browsable_url(self, digest: str) -> str:
        """Return the URL of a workspace, whose files can only be read through this process if they really are in it.

        Raises:
            ServiceError: It is not on this server.
        """
        trust.confine_subfolders(str(self._root / "workspaces"))
        return f"file://{self.folder(digest)}"

    def check_archives(self, spec: JobSpec) -> None:
        """Raise ArgumentError if a packed environment is on a store that is not allowed."""
        for task in spec.tasks.values():
            if task.environment is not None and task.environment.archive is not None:
                shipping.check_allowed(task.environment.archive, self._archives)

    def order(
        self, row: JobRow, spec: JobSpec, launch: TaskLaunch, profile: Profile, prefix: str, slots: int = 0
    ) -> SubmitOrder:
        """Create the order to submit an application of a job; files are read only when the order is carried out.

        Args:
            row: The job.
            spec: Its specification.
            launch: The launch of one task.
            profile: The profile that the job runs under.
            prefix: Prefix of the service's tags.
            slots: Number of workers with which an elastic task starts; 0 for other tasks.
        """
        own = job_name_prefix(row.id, prefix)
        # Tries and launches are attempts of one application, so that its runs continue from their checkpoints.
        variables = {
            "HOPSML_APPLICATION_ID": f"{own}-{launch.task}",
            "HOPSML_APPLICATION_ATTEMPT": str((row.tries - 1) * LAUNCHES_OF_A_TRY + launch.number),
            "HOPSML_JOB_TAG": launch.tag,
            "HOPSML_JOB_FOLDER": urls.join(self._project_url, "Jobs", own, str(row.tries)),
            "HOPSML_PROJECT_URL": self._project_url,
            **({"HOPSML_JOB_WORKSPACE": urls.join(self._project_url, SHARED, own)} if spec.workspace is True else {}),
            **trace_variables(row, launch),
        }

        if slots:
            variables[driver_requests.FIRST_SLOTS] = str(slots)
        if spec.secrets:
            variables[driver_requests.KEY] = driver_requests.new_key()

        def plan() -> SubmissionPlan:
            """Write the job file, and return the plan of the submission."""
            self.check_archives(spec)  # the job may have been stored under other rules
            named = spec.model_copy(update={"code": str(self.folder(row.workspace))})
            path = self._root / "jobs" / row.id / "job.yaml"
            path.parent.mkdir(mode=0o700, exist_ok=True)
            path.parent.chmod(0o700)
            path.write_text(specs.dump(named))
            path.chmod(0o600)
            if spec.secrets:
                driver_requests.seal_secrets(variables, self._secrets(row.owner, spec.secrets))
            most = {launch.task: slots} if slots and not profile.can_grow else {}
            return spark_submit.submission_plans(named, path, profile, f"{prefix},{launch.tag}", variables, most)[
                launch.task
            ]

        return SubmitOrder(launch.tag, plan, variables)


def job_name_prefix(job: str, tag_prefix: str) -> str:
    """Return the prefix of the names of a job's applications and runs.

    Args:
        job: The job's id.
        tag_prefix: Prefix of its service's tags; the part after the last hyphen is appended to the id, so that names
            differ by service.
    """
    return f"{job}-{tag_prefix.rpartition('-')[2]}"


def zip_folder(folder: Path) -> bytes:
    """Pack a folder's files as a zip, with the same bytes for the same files; files left out are listed in the log.

    Raises ArgumentError if it is too large, or if a file cannot be read.
    """
    selected = upload_selection.select_files(folder, MOST_FILES, MOST_FOLDERS, MOST_DEPTH)
    if left_out := upload_selection.left_out_text(selected.left_out):
        log.warning("not uploaded from %s: %s", folder, left_out)
    total = sum(path.stat().st_size for path in selected.files.values())
    if total > MOST_UNPACKED_BYTES:
        raise ArgumentError(
            f"code {folder} has {len(selected.files)} files of {total >> 20} MiB; at most "
            f"{MOST_UNPACKED_BYTES >> 20} MiB can be uploaded; store data elsewhere, and name a folder that "
            "contains only code"
        )
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in selected.files.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (0o755 if os.access(path, os.X_OK) else 0o644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            try:
                archive.writestr(entry, path.read_bytes())
            except OSError as error:
                raise ArgumentError(f"code {folder}: {name} cannot be read: {error.strerror or error}") from error
        for name in selected.empty_folders:
            archive.writestr(zipfile.ZipInfo(name), b"")
    content = packed.getvalue()
    if len(content) > MOST_BYTES:
        raise ArgumentError(
            f"code {folder} packs to {len(content) >> 20} MiB; at most {MOST_BYTES >> 20} MiB are uploaded: keep data "
            "on the store, and name a folder with code alone"
        )
    return content


def _has_files(content: bytes, folder: Path) -> bool:
    """Return True if all files of a zip that was unpacked here before are unchanged; other files are ignored."""
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


def unpack_zip(content: bytes, target: Path) -> None:
    """Unpack a zip into a folder.

    Raises:
        ArgumentError: The zip is invalid or too large, or would write outside the folder.
        ServiceError: The file system is full or not writable.
    """
    if len(content) > MOST_BYTES:
        raise ArgumentError(f"the zip has {len(content) >> 20} MiB; at most {MOST_BYTES >> 20} MiB are accepted")
    if content.count(_ENTRY) > MOST_LISTED:  # a list of a million names would take half a minute and half a gigabyte
        raise ArgumentError(f"the zip lists more than {MOST_LISTED} entries; at most {MOST_FILES} files are accepted")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            _check_entries([entry.filename for entry in archive.infolist()])
            left = MOST_UNPACKED_BYTES
            for entry in archive.infolist():
                left = _unpack_one(archive, entry, target, left)
    except (
        zipfile.BadZipFile,
        NotImplementedError,
        RuntimeError,
        EOFError,
        ValueError,
        lzma.LZMAError,
        zlib.error,
        OSError,
    ) as error:  # damaged, unknown method, encrypted; names that no folder can contain, or duplicate names
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
            raise ServiceError(f"the code cannot be stored: {error.strerror}; free space on the server") from error
        raise ArgumentError(f"the code is no zip that can be read: {error}") from error


def _check_entries(names: Sequence[str]) -> None:
    """Raise ArgumentError for too many files or folders, or for one that lies too deep, before any is created."""
    files = sum(not name.endswith("/") for name in names)
    if files > MOST_FILES:
        raise ArgumentError(f"the zip has {files} files; at most {MOST_FILES} are accepted")
    folders = set[str]()
    for name in names:
        above = name.rstrip("/") if name.endswith("/") else name.rpartition("/")[0]
        if above.count("/") >= MOST_DEPTH:
            raise ArgumentError(
                f"the zip has {name[:100]!r}, which lies deeper than {MOST_DEPTH} folders: put it into one above"
            )
        while above and above not in folders:
            folders.add(above)
            above = above.rpartition("/")[0]
        if len(folders) > MOST_FOLDERS:
            raise ArgumentError(f"the zip has more than {MOST_FOLDERS} folders, which is the limit; upload only code")


def _unpack_one(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, target: Path, left: int) -> int:
    """Unpack one file of a zip; return how many bytes the remaining files may have.

    The sizes in the zip's list are not trusted: bytes are counted while they are unpacked.

    Args:
        archive: The zip.
        entry: The file's entry in the list.
        target: Folder to unpack into.
        left: Bytes that may still be written.
    """
    if not entry.filename:
        raise ArgumentError("the zip has an entry without a name: leave it out")
    path = target / entry.filename
    kind, allowed = stat.S_IFMT(entry.external_attr >> 16), (0, stat.S_IFDIR if entry.is_dir() else stat.S_IFREG)
    if not path.resolve().is_relative_to(target.resolve()) or kind not in allowed or "\0" in entry.filename:
        raise ArgumentError(f"the zip has {entry.filename[:100]!r}, which is no plain file below it: leave it out")
    if entry.is_dir():
        path.mkdir(parents=True, exist_ok=True)
        return left
    path.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(entry) as source, open(path, "xb") as file:
        while piece := source.read(1 << 20):
            left -= len(piece)
            if left < 0:
                raise ArgumentError(
                    f"the zip unpacks to more than {MOST_UNPACKED_BYTES >> 20} MiB; store data elsewhere"
                )
            file.write(piece)
    path.chmod(0o700 if (entry.external_attr >> 16) & 0o100 else 0o600)
    return left


def missing_in_folder(folder: Path, spec: JobSpec) -> list[str]:
    """Return the scripts and functions of a job that a folder lacks, each with an explanation."""
    return [problem for name, task in spec.tasks.items() if (problem := _missing(folder, name, task))]


def _missing(folder: Path, name: str, task: Task) -> str:
    """Return what is wrong with the file or function that a task names; "" if both exist."""
    if task.command is not None:
        return ""
    (named,) = task.files()
    kind = "script" if task.script is not None else "function"
    try:
        file = (folder / named).resolve()
        is_there = file.is_file() and file.is_relative_to(folder.resolve())
    except OSError:  # a name that is too long
        is_there = False
    if not is_there:
        return f"tasks.{name}.{kind}: there is no file {named!r} in the code"
    function = (task.function or "").rpartition(":")[2]
    if function and not _binds(folder / named, function):
        return f"tasks.{name}.function: {named} has no function {function!r}"
    return ""


def _binds(file: Path, name: str) -> bool:
    """Return True if a module may define this name, also if that cannot be determined."""
    try:
        tree = ast.parse(file.read_bytes())
    # the last two: from expressions that are nested too deeply
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return True
    imports_all = any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in ast.walk(tree))
    return imports_all or any(
        getattr(node, "name", None) == name
        or getattr(node, "id", None) == name
        or getattr(node, "asname", None) == name
        for node in ast.walk(tree)
    )
