"""Content of files: read and written as a whole, as file objects, and by a handle."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, BinaryIO

from hopsml.errors import ArgumentError, ArgumentTypeError
from hopsml.hdfs import directories
from hopsml.hdfs.paths import AnyPath, to_url
from hopsml.storage import filesystem
from hopsml.storage.filesystem import FileSystem, for_url
from hopsml.storage.streams import spooled_writer


def dump(data: str | bytes, hdfs_path: AnyPath) -> None:
    """Write text (UTF-8) or bytes as a file; an existing one is replaced atomically."""
    if not isinstance(data, (str, bytes, bytearray, memoryview)):
        raise ArgumentTypeError(f"dump() writes str or bytes, not {type(data).__name__}; encode it first")
    url = to_url(hdfs_path)
    for_url(url).write_bytes(url, data.encode() if isinstance(data, str) else bytes(data))


def load(hdfs_path: AnyPath) -> bytes:
    """Return the content of a file as bytes.

    Raises PathNotFound (an IOError).
    """
    url = to_url(hdfs_path)
    return for_url(url).read_bytes(url)


def open_file(hdfs_path: AnyPath, project: str | None = None, flags: str = "rw", buff_size: int = 0) -> Any:
    """Open a file and return a file object.

    Args:
        hdfs_path: path of the file.
        project: name of another project than this one.
        flags: ``r``, ``w`` or ``a``, binary unless followed by ``t``. ``rw`` (the default) reads a file that exists and
            writes one that does not. Written content appears at close.
        buff_size: ignored; accepted for compatibility. Remote files are read in parts of about 1 MiB, and written to a
            local file that is uploaded at close.
    """
    url = to_url(hdfs_path, project)
    system = for_url(url)
    if flags == "rw":
        flags = "r" if filesystem.exists(url) else "w"
    kind, rest = flags[:1], flags[1:]
    if kind not in ("r", "w", "a") or rest not in ("", "b", "t"):
        raise ArgumentError(f"flags={flags!r}: 'r', 'w' or 'a', then nothing, 'b' or 't'; or 'rw'")
    if kind == "r":
        file: BinaryIO = system.open_read(url)
    elif kind == "w":
        file = system.open_write(url)
    else:
        file = _appender(system, url)
    if rest == "t":
        return io.TextIOWrapper(file, encoding="utf-8")
    return file


def _appender(system: FileSystem, url: str) -> BinaryIO:
    """Return a writer whose content is appended to a file at close."""
    return spooled_writer(lambda spooled: system.append_bytes(url, Path(spooled).read_bytes()))


class HdfsHandle:
    """Handle with a few methods of pydoop's, as returned by ``get()`` and ``get_fs()``."""

    def open_file(self, path: AnyPath, flags: str = "r", **_: Any) -> Any:
        """Open a file as ``hdfs.open_file``, by default for reading."""
        return open_file(path, flags=flags)

    def exists(self, path: AnyPath) -> bool:
        """Return True if there is a file or directory at this path."""
        return directories.exists(path)

    def delete(self, path: AnyPath, recursive: bool = True) -> bool:
        """Delete a path as ``hdfs.delete``, with its content; return False if it does not exist."""
        url = to_url(path)
        return for_url(url).delete(url, recursive)

    def create_directory(self, path: AnyPath) -> bool:
        """Create a directory and its parents, as ``hdfs.mkdir``; return True."""
        directories.mkdir(path)
        return True

    def close(self) -> None:
        """Do nothing, as a handle holds no connection."""

    def __enter__(self) -> HdfsHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def get() -> HdfsHandle:
    """Return a handle on the project's store; the same as ``get_fs()``."""
    return HdfsHandle()


def get_fs() -> HdfsHandle:
    """Return a handle on the project's store; the same as ``get()``."""
    return HdfsHandle()
