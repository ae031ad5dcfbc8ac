"""Code of a job as a folder of this machine: the folder itself, or a zip or git repository that is unpacked first."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hopsml.errors import ArgumentError
from hopsml.service import workspaces
from hopsml.service.render.spark_submit import code_folder, is_git_url
from hopsml.service.spec import JobSpec

_PROTOCOLS = "https:http:ssh:git:file"  # others run programs
# Set where a hook of another repository runs: git would write there (`git rev-parse --local-env-vars`).
_OF_REPOSITORY = (
    "GIT_DIR", "GIT_WORK_TREE", "GIT_IMPLICIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_PREFIX", "GIT_NAMESPACE", "GIT_SHALLOW_FILE", "GIT_GRAFT_FILE",
    "GIT_NO_REPLACE_OBJECTS", "GIT_REPLACE_REF_BASE", "GIT_INTERNAL_SUPER_PREFIX", "GIT_CONFIG", "GIT_QUARANTINE_PATH",
)  # fmt: skip


@contextlib.contextmanager
def local_code(job: JobSpec, job_file: Path) -> Iterator[Path]:
    """Provide the folder with a job's code; that of a zip or git repository exists within the context only.

    Args:
        job: Content of ``job_file``.
        job_file: Absolute path, relative to whose folder the code is found.

    Raises:
        ArgumentError: There is no such folder or zip, it is not safe to unpack, or git reports an error.
    """
    if is_git_url(job.code):
        with tempfile.TemporaryDirectory(prefix="hopsml-code-") as folder:
            _clone(job.code, Path(folder))
            yield Path(folder)
    elif job.code.endswith(".zip"):
        archive = job_file.parent / job.code
        if not archive.is_file():
            raise ArgumentError(f"code {job.code}: there is no file {archive}; name one that is there")
        with tempfile.TemporaryDirectory(prefix="hopsml-code-") as folder:
            workspaces.unpack_zip(archive.read_bytes(), Path(folder))
            yield Path(folder)
    else:
        yield code_folder(job, job_file)


def _clone(code: str, folder: Path) -> None:
    """Check out a git repository's default branch, or the branch, tag or commit behind ``#``, into an empty folder."""
    url, _, revision = code.partition("#")
    if revision.startswith("-"):
        raise ArgumentError(f"code {code}: {revision} is no branch, tag or commit; name one behind the #")
    for line in (
        ("init", "--quiet"),
        ("fetch", "--quiet", "--depth", "1", "--", url, revision or "HEAD"),
        ("checkout", "--quiet", "FETCH_HEAD"),
    ):
        _git(line, folder, code)


def _git(line: tuple[str, ...], folder: Path, code: str) -> None:
    """Run one git command in a folder, without prompts. Raises ArgumentError if it fails."""
    given = {name: value for name, value in os.environ.items() if name not in _OF_REPOSITORY}
    variables = {**given, "GIT_ALLOW_PROTOCOL": _PROTOCOLS, "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(
            ("git", *line), cwd=folder, env=variables, capture_output=True, text=True, errors="replace"
        )
    except FileNotFoundError:
        raise ArgumentError(f"code {code}: git is not installed; install it, or name a folder or zip") from None
    if done.returncode:
        lines = [text for text in done.stderr.splitlines() if text.strip()] or [f"exit status {done.returncode}"]
        raise ArgumentError(f"code {code}: git {line[0]} failed: {lines[-1]}; check the URL and the revision behind #")
