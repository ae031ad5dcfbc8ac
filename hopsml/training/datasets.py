"""Data sets of a job on a node: fetched into a cache before user code starts, or passed on by their URLs.

<HOPSML_DATA_CACHE>/datasets/<key>.lock     held shared by each process that uses the copy, exclusively while it changes
<HOPSML_DATA_CACHE>/datasets/<key>/<name>   the complete copy of one version of a data set, a file or a folder
<HOPSML_DATA_CACHE>/datasets/.tmp-<key>     an incomplete copy, or one that is being deleted

The key is derived from URL and version (ETag, or lengths and modification times), so that a changed data set is fetched
again. The first process of a node fetches, the others wait for it. Copies that no process uses are deleted, the oldest
first, when there is no room for another one; so are incomplete ones of processes that were killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import http.client
import json
import os
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from hopsml.core import file_locks, proxies, redact
from hopsml.core.variables import SETTINGS, Settings
from hopsml.errors import ArgumentError, PathNotFound, StorageError
from hopsml.storage import filesystem, privacy, urls
from hopsml.storage.filesystem import for_url
from hopsml.storage.waiting import StorageWait
from hopsml.training.data.stored_files import cache_folder

WORKSPACE = Settings.workspace.name  # variable with the path, or else the URL, of the folder that a job's tasks share
_PREFIX = "HOPSML_DATASET_"
_PASSED = ("", "file", "hdfs", "hopsfs", "viewfs", "webhdfs", "swebhdfs")  # schemes that frameworks read by themselves
_WEB = ("http", "https")
_FOLDER, _LOCK, _FRESH = "datasets", ".lock", ".tmp-"
_PIECE = 4 << 20
_DIGITS = 19  # of a length; more are not a number of bytes
_UNNAMED = "data"  # name of the copy of a URL without a file name
_held: list[int] = []  # descriptors of the locks of copies that this process uses


def variable(name: str) -> str:
    """Return the environment variable with the location of a data set: upper case, ``_`` for ``-``."""
    return _PREFIX + name.upper().replace("-", "_")


@dataclass(frozen=True)
class DatasetSource:
    """Data set as a job file names it; ``fetch`` as there."""

    name: str
    url: str
    fetch: Literal["auto", "copy", "pass"] = "auto"

    @property
    def is_copied(self) -> bool:
        """True if nodes get a copy, False if user code gets the URL or path itself."""
        return self.fetch == "copy" or (self.fetch == "auto" and urls.split(self.url)[0] not in _PASSED)


def passed_variables(sources: Sequence[DatasetSource]) -> dict[str, str]:
    """Return the variables of the data sets that are passed on: paths for local files, else URLs."""
    return {variable(one.name): local_path(one.url) for one in sources if not one.is_copied}


def local_path(url: str) -> str:
    """Return the path of a file:// URL; other URLs and paths unchanged."""
    return urls.split(url)[2] if urls.is_local(url) else url


def fetch_first(function: Callable[..., Any], sources: Sequence[DatasetSource]) -> Callable[..., Any]:
    """Wrap a function so that each worker has copies of the data sets on its node before it calls the function."""
    copied = tuple(one for one in sources if one.is_copied)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        os.environ.update(fetch_all(copied))
        return function(*args, **kwargs)

    return call if copied else function


def fetch_all(sources: Sequence[DatasetSource]) -> dict[str, str]:
    """Fetch the data sets that are copied, unless this node has them, and return the variables with their paths.

    Raises:
        ArgumentError: The cache has no room for a data set.
        StorageError: A data set cannot be read.
    """
    return {variable(one.name): str(fetch(one)) for one in sources if one.is_copied}


@functools.cache  # a process reads one version of a data set, trials of a search in one process too
def fetch(source: DatasetSource) -> Path:
    """Return the path of this node's copy of a data set, which is fetched if the node does not have its version.

    The copy is not deleted while this process lives. Its files are read-only.

    Raises:
        ArgumentError: The cache has no room for it.
        StorageError: It cannot be read.
    """
    folder = cache_folder() / _FOLDER
    try:
        privacy.ensure_private_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
        with StorageWait():
            return _fetched(source, _open(source.url), folder)
    except (OSError, StorageError) as error:
        raise StorageError(f"data set {source.name}: {source.url} cannot be fetched: {error}", source.url) from error


@dataclass(frozen=True)
class DatasetOrigin:
    """Data set at its origin: its URL, relative path -> bytes of each file, and the version of their content.

    The path of a single file is ""; its length is -1 if the origin does not report it.
    """

    url: str
    files: Mapping[str, int]
    version: str

    @property
    def key(self) -> str:
        """Name of the copy in the cache."""
        return hashlib.sha256(f"{self.url}\n{self.version}".encode()).hexdigest()[:32]

    @property
    def size(self) -> int:
        """Bytes of all files whose length is known."""
        return sum(max(0, length) for length in self.files.values())


def _open(url: str) -> DatasetOrigin:
    """Return the files and the version of a data set at its origin."""
    if urls.split(url)[0] in _WEB:
        with _web(url, "HEAD") as answer:
            about = answer.headers
            version = about.get("ETag") or f"{about.get('Last-Modified')} {about.get('Content-Length')}"
            return DatasetOrigin(url, {"": _announced_length(about)}, version)
    found = for_url(url).status(url)
    if not found.is_dir:
        return DatasetOrigin(url, {"": found.length}, f"{found.length} {found.modified_s!r}")
    files = [one for one in filesystem.walk(url) if not one.is_dir]
    version = json.dumps([(urls.relative(one.url, url), one.length, one.modified_s) for one in files])
    return DatasetOrigin(url, {urls.relative(one.url, url): one.length for one in files}, version)


def _announced_length(headers: Mapping[str, str]) -> int:
    """Return the length of an answer in bytes; -1 without a valid one."""
    text = headers.get("Content-Length") or ""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < _DIGITS else -1


def _fetched(source: DatasetSource, origin: DatasetOrigin, folder: Path) -> Path:
    """Return the copy of a data set in the cache's folder, and hold its lock from now on."""
    name = urls.name(urlsplit(origin.url).path or origin.url)
    target = folder / origin.key / (_UNNAMED if name in ("", ".", "..") else name)
    lock = os.open(folder / f"{origin.key}{_LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH)
        if not target.exists():
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.exists():
                _copy(source, origin, folder, target)
            fcntl.flock(lock, fcntl.LOCK_SH)
            if not target.exists():  # deleted between the two locks
                raise StorageError(f"the copy {target} was deleted; allow more with {Settings.data_cache_bytes.name}")
    except BaseException:
        os.close(lock)
        raise
    os.utime(target.parent)
    _held.append(lock)
    return target


def _copy(source: DatasetSource, origin: DatasetOrigin, folder: Path, target: Path) -> None:
    """Copy a data set from its origin to the cache, completely or not at all."""
    most = SETTINGS.data_cache_bytes
    _check_size(source, origin.size, most)
    _make_room(folder, most - origin.size)
    began_s, fresh = time.monotonic(), folder / f"{_FRESH}{origin.key}"
    shutil.rmtree(fresh, ignore_errors=True)  # of a process that was killed, as this one holds the lock
    fresh.mkdir(mode=0o700)
    size = 0
    try:
        for name in origin.files:
            path = fresh / target.name / name if name else fresh / target.name
            path.parent.mkdir(parents=True, exist_ok=True)
            for length in _download(urls.join(origin.url, name), path):
                _check_size(source, size + length, most)
            size += path.stat().st_size
            path.chmod(0o400)
        (fresh / target.name).parent.mkdir(parents=True, exist_ok=True)
        if not origin.files:
            (fresh / target.name).mkdir()
        fresh.rename(target.parent)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    if size > origin.size:
        _make_room(folder, most)
    lasted_s = time.monotonic() - began_s
    shown = redact.text(source.url)
    print(f"hopsml: data set {source.name}: {size} bytes of {shown} fetched in {lasted_s:.1f} s", flush=True)


def _check_size(source: DatasetSource, size: int, most: int) -> None:
    """Raise ArgumentError if a data set has more bytes than the cache may have."""
    if size > most:
        raise ArgumentError(
            f"data set {source.name} has {size} bytes, and a node's cache at most {most}: set "
            f"{Settings.data_cache_bytes.name} to more under env of the task, or fetch: pass in the job file"
        )


def _download(url: str, path: Path) -> Iterator[int]:
    """Copy one file to a local path; yield the length that has arrived, after each piece of a file from the web."""
    if urls.split(url)[0] not in _WEB:
        filesystem.copy(url, str(path))
        return
    with _web(url, "GET") as answer, open(path, "xb") as file:
        while piece := answer.read(_PIECE):
            file.write(piece)
            yield file.tell()
        expected = _announced_length(answer.headers)
        if file.tell() != expected >= 0:
            raise StorageError(f"{url} ended after {file.tell()} of {expected} bytes", url)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Handler that follows redirects to HTTPS, and from HTTP to HTTP."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """Return the next request. Raises StorageError for one that others on the network could answer."""
        if urls.split(newurl)[0] not in ("https", req.type):
            raise StorageError(f"{req.full_url} leads to {newurl}, which is not {req.type.upper()}", req.full_url)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


@contextlib.contextmanager
def _web(url: str, method: str) -> Iterator[Any]:
    """Send a request over HTTP, and provide the answer."""
    try:
        request = urllib.request.Request(url, method=method, headers={"Accept-Encoding": "identity"})
        with proxies.opener(url, _Redirects()).open(request, timeout=SETTINGS.storage_timeout_s) as answer:
            yield answer
    except urllib.error.HTTPError as error:
        if error.code == 404:
            raise PathNotFound(f"{url}: there is no such file", url) from error
        raise StorageError(f"{method} {url}: HTTP status {error.code} {error.reason}", url) from error
    except (http.client.HTTPException, ValueError) as error:  # no valid answer, or no valid URL
        if isinstance(error, ArgumentError):
            raise
        raise StorageError(f"{method} {url}: {type(error).__name__}: {error}", url) from error


def _make_room(folder: Path, most: int) -> None:
    """Delete the copies that were used longest ago, and that no process uses, until at most ``most`` bytes remain."""
    for incomplete in folder.glob(f"{_FRESH}*"):
        with _unused(folder, incomplete.name.removeprefix(_FRESH)) as is_unused:
            if is_unused:
                shutil.rmtree(incomplete, ignore_errors=True)
    copies = sorted(
        (path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(_FRESH)),
        key=lambda path: path.stat().st_mtime,
    )
    sizes = {copy: sum(path.stat().st_size for path in copy.rglob("*") if path.is_file()) for copy in copies}
    for copy in copies:
        if sum(sizes.values()) <= most:
            return
        with _unused(folder, copy.name) as is_unused:
            if is_unused:
                gone = folder / f"{_FRESH}{copy.name}"
                shutil.rmtree(gone, ignore_errors=True)
                copy.rename(gone)
                shutil.rmtree(gone, ignore_errors=True)
                del sizes[copy]


@contextlib.contextmanager
def _unused(folder: Path, key: str) -> Iterator[bool]:
    """Hold the lock of a copy; provide False without it if a process uses the copy, or fetches it."""
    lock = os.open(folder / f"{key}{_LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield file_locks.try_lock(lock)
    finally:
        os.close(lock)
