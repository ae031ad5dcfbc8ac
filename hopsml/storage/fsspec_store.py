"""Every other scheme (``s3``, ``gs``, ``abfs``, ``memory`` ...) through fsspec.

Object stores have no rename: what other stores do in one step is a copy and a deletion there. A file still
appears whole, because such a store shows an object when its upload ends.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from hopsml.errors import ArgumentError, PathExists, PathNotFound, StorageError, StorageUnavailable
from hopsml.storage import causes, urls
from hopsml.storage.deadline import Steps
from hopsml.storage.filesystem import Capacity, FileStatus
from hopsml.storage.frames import CHUNK_BYTES
from hopsml.storage.streams import buffered_reader, spooled_writer

T = TypeVar("T")


def create(url: str, timeout_s: float) -> FsspecFileSystem:
    """The file system for a scheme that fsspec knows; ArgumentError says which package is missing."""
    return FsspecFileSystem(url, timeout_s)


class FsspecFileSystem:
    """FileSystem by way of fsspec; each step runs in a thread that is abandoned when its deadline passes."""

    def __init__(self, url: str, timeout_s: float) -> None:
        import fsspec

        self.scheme = urls.split(url)[0]
        self.timeout_s = timeout_s
        try:
            self._fs: Any = fsspec.filesystem(self.scheme)
        except (ValueError, ImportError) as error:
            raise ArgumentError(
                f"{url}: nothing here speaks {self.scheme}:// ({error}); use a local path, hdfs://, "
                "webhdfs://, or install the fsspec package of that store"
            ) from error

    def status(self, url: str) -> FileStatus:
        """PathNotFound if there is nothing."""
        return _status(url, self._run("look at", url, lambda: self._fs.info(url)))

    def list_dir(self, url: str) -> list[FileStatus]:
        """Entries by name."""
        if not self.status(url).is_dir:
            raise PathNotFound(f"cannot list {url}: it is not a directory", url)
        self._fs.invalidate_cache()
        found = self._run("list", url, lambda: self._fs.ls(url, detail=True))
        entries = [_status(urls.join(url, urls.name(info["name"])), info) for info in found]
        return sorted(entries, key=lambda entry: entry.name)

    def read_bytes(self, url: str) -> bytes:
        """The whole file; its length is checked."""
        length = self.status(url).length
        data = b"".join(self._chunks("read", url))
        if len(data) != length:
            raise StorageUnavailable(f"cannot read {url}: {len(data)} of {length} bytes came", url)
        return data

    def read_range(self, url: str, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes from ``offset``."""
        return bytes(self._run("read", url, lambda: self._fs.cat_file(url, start=offset, end=offset + length)))

    def write_bytes(self, url: str, data: bytes, overwrite: bool = True) -> None:
        """Whole or not at all; exclusive without ``overwrite`` where the store can do that."""
        self._refuse_taken(url, overwrite)
        mode = "overwrite" if overwrite else "create"
        with Steps("write", url, self.timeout_s) as steps, self._causes("write", url):
            steps.run(lambda: self._fs.makedirs(urls.parent(url), exist_ok=True))
            steps.run(lambda: self._fs.pipe_file(url, data, mode=mode))

    def append_bytes(self, url: str, data: bytes) -> None:
        """Reads the file and writes it again: object stores cannot append."""
        try:
            before = self.read_bytes(url)
        except PathNotFound:
            before = b""
        self.write_bytes(url, before + data)

    def upload(self, local: str | os.PathLike[str], url: str, overwrite: bool = True) -> None:
        """One local file, in chunks; it appears when the last one is in."""
        self._refuse_taken(url, overwrite)
        try:
            file = open(local, "rb")  # noqa: SIM115
        except OSError as error:
            raise causes.from_os_error("read", os.fspath(local), error) from error
        with file, Steps("write", url, self.timeout_s) as steps, self._causes("write", url):
            steps.run(lambda: self._fs.makedirs(urls.parent(url), exist_ok=True))
            # To a temporary name: not every store of fsspec's waits with showing a file until it is closed.
            fresh = urls.temporary_sibling(url)
            target = steps.run(lambda: self._fs.open(fresh, "wb"))
            while piece := file.read(CHUNK_BYTES):
                _step(steps, target.write, piece)
            steps.run(target.close)
            steps.run(lambda: self._fs.mv(fresh, url))

    def download(self, url: str, local: str | os.PathLike[str]) -> None:
        """One file to a local path, whole or not at all."""
        length, target = self.status(url).length, os.path.abspath(local)
        fresh = Path(urls.temporary_sibling(target))
        try:
            fresh.parent.mkdir(parents=True, exist_ok=True)
            with open(fresh, "xb") as file:
                for piece in self._chunks("read", url):
                    file.write(piece)
                got = file.tell()
            if got != length:
                raise StorageUnavailable(f"cannot read {url}: {got} of {length} bytes came", url)
            os.replace(fresh, target)
        except OSError as error:
            fresh.unlink(missing_ok=True)
            if isinstance(error, StorageError):
                raise
            raise causes.from_os_error("write", target, error) from error

    def open_read(self, url: str) -> BinaryIO:
        """A seekable binary reader."""
        found = self.status(url)
        if found.is_dir:
            raise PathExists(f"cannot read {url}: it is a directory, not a file", url)
        return buffered_reader(lambda offset, length: self.read_range(url, offset, length), found.length)

    def open_write(self, url: str, overwrite: bool = True) -> BinaryIO:
        """A binary writer by way of a local temporary file, uploaded when it is closed."""
        self._refuse_taken(url, overwrite)
        return spooled_writer(lambda spooled: self.upload(spooled, url, overwrite))

    def make_dirs(self, url: str, mode: int | None = None) -> None:
        """With parents, ``mode`` is of no meaning; object stores have no directories and do nothing."""
        with contextlib.suppress(PathNotFound):
            if not self.status(url).is_dir:
                raise PathExists(f"cannot make directory {url}: a file has that name", url)
        self._run("make directory", url, lambda: self._fs.makedirs(url, exist_ok=True))

    def rename(self, source: str, target: str, overwrite: bool = False) -> None:
        """A copy and a deletion on object stores."""
        is_dir = self.status(source).is_dir
        with contextlib.suppress(PathNotFound):
            if self.status(target).is_dir or not overwrite:
                raise PathExists(f"cannot rename {source} to {target}: it exists already", target)
        self._run(f"rename {source} to", target, lambda: self._fs.mv(source, target, recursive=is_dir))

    def delete(self, url: str, recursive: bool = False) -> bool:
        """Whether there was something."""
        try:
            is_dir = self.status(url).is_dir
        except PathNotFound:
            return False
        if is_dir and not recursive and self.list_dir(url):
            raise PathExists(f"cannot delete {url}: the directory is not empty; delete it recursively", url)
        self._run("delete", url, lambda: self._fs.rm(url, recursive=is_dir))
        return True

    def set_permission(self, url: str, mode: int) -> None:
        """Not a thing of object stores: StorageError."""
        raise StorageError(f"cannot change the permission of {url}: {self.scheme}:// has none", url)

    def set_owner(self, url: str, owner: str | None = None, group: str | None = None) -> None:
        """Not a thing of object stores: StorageError."""
        raise StorageError(f"cannot change the owner of {url}: {self.scheme}:// has none", url)

    def capacity(self, url: str) -> Capacity:
        """Not a thing of object stores: StorageError."""
        raise StorageError(f"cannot measure {url}: {self.scheme}:// does not tell its size", url)

    def close(self) -> None:
        """fsspec keeps its own connections."""

    # ------------------------------------------------------------------ hands

    def _refuse_taken(self, url: str, overwrite: bool) -> None:
        with contextlib.suppress(PathNotFound):
            if self.status(url).is_dir:
                raise PathExists(f"cannot write {url}: it is a directory; choose another name", url)
            if not overwrite:
                raise PathExists(
                    f"cannot write {url}: it exists already; allow overwriting or choose another name", url
                )

    def _chunks(self, action: str, url: str) -> Iterator[bytes]:
        with Steps(action, url, self.timeout_s) as steps, self._causes(action, url):
            file = steps.run(lambda: self._fs.open(url, "rb"))
            try:
                while piece := steps.run(lambda: file.read(CHUNK_BYTES)):
                    yield piece
            finally:
                with contextlib.suppress(StorageError):  # abandoned
                    steps.run(file.close)

    def _run(self, action: str, url: str, call: Callable[[], T]) -> T:
        with Steps(action, url, self.timeout_s) as steps, self._causes(action, url):
            return steps.run(call)

    @contextlib.contextmanager
    def _causes(self, action: str, url: str) -> Iterator[None]:
        try:
            yield
        except (StorageError, GeneratorExit, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            raise causes.from_text(action, url, type(error).__name__, str(error)) from error


def _step(steps: Steps, call: Callable[[bytes], Any], piece: bytes) -> None:
    steps.run(lambda: call(piece))


def _status(url: str, info: dict[str, Any]) -> FileStatus:
    is_dir = info["type"] == "directory"
    return FileStatus(
        url=url,
        is_dir=is_dir,
        length=0 if is_dir else int(info.get("size") or 0),
        modified_s=_modified_s(info),
    )


def _modified_s(info: dict[str, Any]) -> float:
    for key in ("mtime", "LastModified", "last_modified", "modified", "updated", "created"):
        value = info.get(key)
        if isinstance(value, (int, float)):
            return float(value)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, str):
            with contextlib.suppress(ValueError):
                return datetime.fromisoformat(value).timestamp()
    return 0.0
