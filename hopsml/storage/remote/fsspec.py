"""Stores of every other scheme (``s3``, ``gs``, ``abfs``, ``memory`` ...) through fsspec.

Object stores have no rename: an operation that is atomic on other stores is a copy and a deletion there. A file still
appears complete, because such a store shows an object when its upload ends.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from hopsml.core import proxies
from hopsml.errors import ArgumentError
from hopsml.storage import urls
from hopsml.storage.filesystem import FileStatus
from hopsml.storage.remote.store import CHUNK_BYTES, RemoteStore


class FsspecStore(RemoteStore):
    """Object store, or any other store for which fsspec has a class."""

    is_object_store = True

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        module, _, name = options["class"].rpartition(".")
        self._cached: Any = getattr(importlib.import_module(module), name)(**options["config"])

    @staticmethod
    def options(url: str) -> dict[str, Any]:
        """Return the class that this process has registered for the scheme, and its configuration."""
        from fsspec.config import apply_config

        found = _class_for(url)
        return {"class": f"{found.__module__}.{found.__qualname__}", "config": apply_config(found, {})}

    @staticmethod
    def addresses(url: str) -> list[str]:
        """Return no addresses, since fsspec does not provide them."""
        return []

    @staticmethod
    def proxy_note(url: str) -> str:
        """Return the part of an error message that names the proxy of the environment, if there is one."""
        return proxies.proxy_hint_for_scheme("https")

    @staticmethod
    def is_in_this_process(url: str) -> bool:
        """Return True for ``memory://``, and for a class of a notebook or script, which others cannot import."""
        from fsspec.implementations.memory import MemoryFileSystem

        found = _class_for(url)
        return issubclass(found, MemoryFileSystem) or found.__module__ == "__main__"

    def status(self, url: str) -> FileStatus:
        """Return the attributes of one file or directory."""
        return _status(url, self._fs.info(url))

    def list_dir(self, url: str) -> list[FileStatus]:
        """Return the entries of a directory; NotADirectoryError for a file."""
        if not self.status(url).is_dir:
            raise NotADirectoryError(f"{url} is not a directory")
        found = self._fs.ls(url, detail=True)
        return [_status(urls.join(url, urls.name(info["name"])), info) for info in found]

    def read(self, url: str, offset: int, length: int | None) -> tuple[int, Iterator[bytes]]:
        """Return the number of bytes and the bytes, in pieces, from ``offset`` on.

        A range is returned as the store delivers it: the file's length would be a second request each time.
        """
        if length is None:
            found = self.status(url)
            if found.is_dir:  # S3 would return no data, without an error
                raise FileExistsError(f"{url} is a directory, not a file")
            return found.length, self._pieces(url)
        try:
            data = bytes(self._fs.cat_file(url, start=offset, end=offset + length))
        except OSError:
            if offset < self.status(url).length:
                raise
            data = b""  # at the end: S3 rejects a range that begins there
        return len(data), iter([data])

    def write(self, url: str, pieces: Iterator[bytes], overwrite: bool) -> None:
        """Write a file: in one request under its final name, piece by piece under a temporary one.

        One request makes the file appear complete: not every class of fsspec hides a file until its upload ends.
        """
        self._fs.makedirs(urls.parent(url), exist_ok=True)
        if not urls.has_temporary_part(url):
            self._fs.pipe_file(url, b"".join(pieces), mode="overwrite" if overwrite else "create")
            return
        with self._fs.open(url, "wb") as file:
            for piece in pieces:
                file.write(piece)

    def make_dirs(self, url: str, mode: int | None) -> None:
        """Create a directory, with missing parents, if the store has directories.

        Object stores do nothing. ``mode`` has no effect.
        """
        with contextlib.suppress(FileNotFoundError):
            if not self.status(url).is_dir:
                raise FileExistsError(f"{url} is a file")
        self._fs.makedirs(url, exist_ok=True)

    def rename(self, source: str, target: str, overwrite: bool) -> None:
        """Rename by a copy and a deletion, so not atomically."""
        is_dir = self.status(source).is_dir
        with contextlib.suppress(FileNotFoundError):
            if self.status(target).is_dir or not overwrite:
                raise FileExistsError(f"{target} exists already")
        self._fs.makedirs(urls.parent(target), exist_ok=True)
        if is_dir:
            self._copy_all(source, target)
        else:
            self._fs.cp_file(source, target)
        self._delete(source, is_dir)

    def delete(self, url: str, recursive: bool) -> bool:
        """Delete a file, an empty directory, or with ``recursive`` a full one; False if there was none."""
        try:
            is_dir = self.status(url).is_dir
        except FileNotFoundError:
            return False
        if is_dir and not recursive and self.list_dir(url):
            raise OSError(f"{url} is not empty")
        self._delete(url, is_dir)
        return True

    def _copy_all(self, source: str, target: str) -> None:
        """Copy the content of a folder, many objects at a time where the store supports it.

        Names are taken literally. fsspec's ``mv`` or a recursive ``copy`` are not used, since they would copy the
        folder as well: S3 has no such object.
        """
        above = len(self._fs._strip_protocol(source).rstrip("/")) + 1
        self._fs.makedirs(target, exist_ok=True)
        sources, targets = list[str](), list[str]()
        for path, info in self._fs.find(source, withdirs=True, detail=True).items():
            if not (name := path[above:].strip("/")):  # the folder itself
                continue
            if info["type"] == "directory":
                self._fs.makedirs(urls.join(target, name), exist_ok=True)
            else:
                sources.append(path)
                targets.append(self._fs._strip_protocol(urls.join(target, name)))
        self._fs.copy(sources, targets)

    def _delete(self, url: str, is_dir: bool) -> None:
        if _is_plain(url):
            self._fs.rm(url, recursive=is_dir)
        else:
            self._remove(url, is_dir)

    def _remove(self, url: str, is_dir: bool) -> None:
        """Delete a file, or a folder with its content; names are taken literally."""
        if not is_dir:
            self._fs.rm_file(url)
            return
        for entry in self.list_dir(url):
            self._remove(entry.url, entry.is_dir)
        with contextlib.suppress(FileNotFoundError):  # an object store has no folder when nothing is in it
            self._fs.rmdir(url)

    @property
    def _fs(self) -> Any:
        """File system without cached listings, since another process may have written since."""
        self._cached.invalidate_cache()
        return self._cached

    def _pieces(self, url: str) -> Iterator[bytes]:
        with self._fs.open(url, "rb") as file:
            while piece := file.read(CHUNK_BYTES):
                yield piece


def _is_plain(url: str) -> bool:
    """Return True if fsspec's calls for several files take this URL literally, without wildcards."""
    return not any(sign in url for sign in "*?[]")


def _class_for(url: str) -> type[Any]:
    import fsspec

    scheme = urls.split(url)[0]
    try:
        found: type[Any] = fsspec.get_filesystem_class(scheme)
    except (ValueError, ImportError) as error:
        raise ArgumentError(
            f"{url}: no installed package supports {scheme}:// ({error}); use a local path, hdfs://, or webhdfs://, "
            "or install the fsspec package for this store"
        ) from error
    return found


def _status(url: str, info: dict[str, Any]) -> FileStatus:
    is_dir = info["type"] == "directory"
    return FileStatus(
        url=url, is_dir=is_dir, length=0 if is_dir else int(info.get("size") or 0), modified_s=_modified_s(info)
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
