"""Declarations of a training function: the files that it reads, and the run's seed.

``data(url)`` records an input and returns the URL, so that the call can replace the URL in an expression. In a worker
the chief writes it to the run's ``inputs.jsonl``; on the driver it belongs to every run that this process starts
afterwards.

Every run has a seed: the value of ``environment={"HOPSML_SEED": ...}`` or of the driver's ``HOPSML_SEED``, else a
random one. It is recorded in ``run.json``, and every worker gets it as ``HOPSML_SEED``, so a rerun draws the same
numbers. hopsml itself seeds no framework: the function decides which generators it seeds, and whether ranks differ.
``PYTHONHASHSEED`` cannot be set per run: Python reads it when an interpreter starts, and workers are forked from one
that runs already. The interpreter's value is recorded (``worker.json``); Spark sets 0 for its executors, and a rerun on
local workers starts theirs with the recorded value.

Every worker imports this module before the user's function, so modules that only a call needs are imported by the call.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from hopsml.core import redact
from hopsml.core.variables import LARGEST_SEED, SETTINGS, Settings
from hopsml.errors import HopsmlError

if TYPE_CHECKING:
    from hopsml.storage.filesystem import FileStatus


SEED_VARIABLE = Settings.seed.name


def choose_seed(given: Mapping[str, str], environment: Mapping[str, str]) -> int:
    """Return the seed of a new run: from the call's variables, else from the driver's environment, else random.

    Args:
        given: variables that the call gives to its workers.
        environment: the driver's environment.

    Raises:
        ArgumentError: a text that is not a seed.
    """
    import secrets

    chosen = Settings(given).seed
    chosen = Settings(environment).seed if chosen is None else chosen
    return secrets.randbelow(LARGEST_SEED + 1) if chosen is None else chosen


def seed() -> int:
    """Return the run's seed, the same on every rank.

    0 in a process that is not a worker and has no ``HOPSML_SEED``.
    """
    return SETTINGS.seed or 0


LIMIT_BYTES = 256 << 20  # a larger input is not read for a checksum
_CHUNK = 1 << 20
Url = TypeVar("Url", str, "os.PathLike[str]")

_lock = threading.Lock()
_of_driver: dict[str, dict[str, Any]] = {}
_write: Callable[[dict[str, Any]], None] | None = None


class WorkerFacts(Protocol):
    """Attributes of a worker's context that are used here."""

    @property
    def rank(self) -> int:
        """Rank of the worker in its group; 0 is the chief."""

    @property
    def events_dir(self) -> Path:
        """Local folder of event files; its parent is the local copy of the run directory."""


def data(url: Url, *, limit_bytes: int = LIMIT_BYTES) -> Url:
    """Record a file or folder as an input of the run, and return ``url``.

    The record contains size, time, and a checksum of the content. An input that cannot be read is recorded with the
    reason; no error is raised here, since the training function meets it itself.

    Args:
        url: path or URL of the input.
        limit_bytes: a larger input is not read: its checksum is one of names, sizes and times, which the record states.
    """
    if _write is _ignore:
        return url
    try:
        facts = describe(os.fspath(url), limit_bytes)
    except HopsmlError as error:
        facts = {"url": os.fspath(url), "problem": str(error)}
    if _write is not None:
        _write(facts)
    else:
        with _lock:
            _of_driver[facts["url"]] = facts
    return url


RESOURCES = "resources"  # folder of a run directory with the files of ``versioned_resources``


def resource_urls(paths: Sequence[str] | str | None) -> dict[str, str]:
    """Return name -> URL of files and folders to copy into a run directory, from paths as ``hopsml.hdfs`` accepts them.

    Raises:
        PathNotFound: (a FileNotFoundError) One does not exist.
        ArgumentError: Two have the same name.
    """
    from hopsml.core import settings
    from hopsml.errors import ArgumentError, PathNotFound
    from hopsml.storage import filesystem, urls

    root, found = settings.project_url(), dict[str, str]()
    for path in [paths] if isinstance(paths, str) else paths or ():
        text = os.fspath(path)
        own = f"/Projects/{urls.name(root)}/"  # as existing programs have it, also for a project on the local disk
        url = (
            text
            if urls.split(text)[0]
            else urls.scheme_and_authority(root) + text
            if text.startswith("/")
            else urls.join(root, text)
        )
        if urls.is_local(root) and text.startswith(own):
            url = urls.join(root, text.removeprefix(own))
        if not filesystem.exists(url):
            raise PathNotFound(f"versioned_resources: {url} does not exist; nothing was started", url)
        if urls.name(url) in found:
            raise ArgumentError(
                f"versioned_resources: {url} and {found[urls.name(url)]} have one name; rename one of them"
            )
        found[urls.name(url)] = url
    return found


def copy_resources(resources: Mapping[str, str], run_url: str) -> None:
    """Copy files and folders, by name, into the folder ``resources`` of a run directory. Raises StorageError."""
    from hopsml.storage import tree, urls

    for name, url in resources.items():
        tree.copy_tree(url, urls.join(run_url, RESOURCES, name))


def recorded_inputs() -> list[dict[str, Any]]:
    """Return the inputs recorded so far in this process, which is a driver."""
    with _lock:
        return list(_of_driver.values())


def start_recording(context: WorkerFacts) -> None:
    """Write inputs to the run directory from now on; called in every worker before the user's function.

    Only the chief records inputs.
    """
    global _write
    if context.rank != 0:
        _write = _ignore
        return
    target = context.events_dir.parent / "inputs.jsonl"

    def write(facts: dict[str, Any]) -> None:
        line = json.dumps({"time": time.time(), **redact.record(facts)}, ensure_ascii=False) + "\n"
        with _lock, open(target, "ab") as file:
            file.write(line.encode())

    _write = write


def describe(url: str, limit_bytes: int = LIMIT_BYTES) -> dict[str, Any]:
    """Return size in bytes, number of files, latest change and checksum of a file or folder; raises StorageError."""
    from hopsml.storage import filesystem, urls

    status = filesystem.for_url(url).status(url)
    files = [status]
    if status.is_dir:
        files = [file for file in filesystem.walk(url) if not file.is_dir and not urls.is_temporary(file.url)]
    total = sum(file.length for file in files)
    is_read = total <= limit_bytes
    return {
        "url": url,
        "bytes": total,
        "files": len(files),
        "modified_s": max((file.modified_s for file in files), default=status.modified_s),
        "checksum": _of_content(url, status, files) if is_read else _of_listing(url, status, files),
        "checksum_of": "content" if is_read else "names, sizes and times",
    }


def _of_content(url: str, status: FileStatus, files: list[FileStatus]) -> str:
    import hashlib

    if not status.is_dir:
        return "sha256:" + sha256_of(url)
    total = hashlib.sha256()
    for name, file in _by_name(url, files):
        total.update(f"{name}\0{file.length}\0{sha256_of(file.url)}\n".encode())
    return "sha256:" + total.hexdigest()


def _of_listing(url: str, status: FileStatus, files: list[FileStatus]) -> str:
    import hashlib

    total = hashlib.sha256()
    for name, file in _by_name(url, files) if status.is_dir else [("", status)]:
        total.update(f"{name}\0{file.length}\0{file.modified_s}\n".encode())
    return "sha256:" + total.hexdigest()


def _by_name(url: str, files: list[FileStatus]) -> list[tuple[str, FileStatus]]:
    from hopsml.storage import urls

    return sorted((urls.relative(file.url, url), file) for file in files)


def sha256_of(url: str) -> str:
    """Return the SHA-256 of a file, which may be larger than the memory, in hex. Raises StorageError."""
    import hashlib

    from hopsml.storage import filesystem

    total = hashlib.sha256()
    with filesystem.for_url(url).open_read(url) as file:
        while chunk := file.read(_CHUNK):
            total.update(chunk)
    return total.hexdigest()


def _ignore(facts: dict[str, Any]) -> None:
    """Discard an input, on ranks other than the chief's."""
