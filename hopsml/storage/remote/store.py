"""Interface of a store for ``adapter.RemoteFileSystem``, and the registry of stores by scheme."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any, ClassVar, Protocol

from hopsml.storage.filesystem import FileStatus, StoreCapacity

_FOLDER = "hopsml.storage.remote"
_STORES = {  # scheme -> module and class
    "hdfs": ("hdfs", "HdfsStore"),
    "hopsfs": ("hdfs", "HdfsStore"),
    "viewfs": ("hdfs", "HdfsStore"),
    "webhdfs": ("webhdfs", "WebHdfsStore"),
    "swebhdfs": ("webhdfs", "WebHdfsStore"),
}
_OTHERS = ("fsspec", "FsspecStore")


class RemoteStore(Protocol):
    """Interface of the client of one store; it is used in a helper process, one call at a time.

    Every method takes whole URLs. It may block, since its process is killed then, and it raises what its library
    raises: ``causes`` distinguishes errors by the names of their types and their texts. NotImplementedError is for
    operations that a kind of store does not have: ``RemoteFileSystem`` then raises a StorageError with its text.
    """

    # On an object store ``write`` shows a file when it is complete, and reserves its name; it cannot append.
    is_object_store: ClassVar[bool]

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        """Create the client of one store.

        Args:
            url: any URL of the store.
            options: what the static method ``options`` returned in the calling process.
        """

    @staticmethod
    def options(url: str) -> dict[str, Any]:
        """Return settings of the store that only the calling process has; ArgumentError for an unknown scheme."""

    @staticmethod
    def addresses(url: str) -> list[str]:
        """Return ``host:port`` of each server behind the store, if known, to report which one does not respond."""

    @staticmethod
    def is_in_this_process(url: str) -> bool:
        """Return True if the store's files are in the calling process itself, so that no other one could read them."""

    def status(self, url: str) -> FileStatus:
        """Return the attributes of one file or directory; FileNotFoundError if there is none."""

    def list_dir(self, url: str) -> list[FileStatus]:
        """Return the entries of a directory in any order; NotADirectoryError for a file."""

    def read(self, url: str, offset: int, length: int | None) -> tuple[int, Iterator[bytes]]:
        """Return the number of bytes from ``offset`` on, and the bytes in pieces.

        At most ``length`` bytes; None: to the end.
        """

    def write(self, url: str, pieces: Iterator[bytes], overwrite: bool) -> None:
        """Write a new file from these pieces; missing parents are created."""

    def make_dirs(self, url: str, mode: int | None) -> None:
        """Create a directory with its parents; arguments as for ``FileSystem.make_dirs``."""

    def rename(self, source: str, target: str, overwrite: bool) -> None:
        """Rename a file or directory; arguments as for ``FileSystem.rename``.

        FileExistsError, or the library's own error, if the target exists.
        """

    def delete(self, url: str, recursive: bool) -> bool:
        """Delete a file or directory; arguments as for ``FileSystem.delete``.

        An OSError with the text "not empty" for a directory with entries.
        """

    # Methods that object stores do not have:

    def append(self, url: str, pieces: Iterator[bytes]) -> None:
        """Append pieces to a file, which is created if missing; not called for an object store."""
        raise NotImplementedError("this store cannot append")

    def set_permission(self, url: str, mode: int) -> None:
        """Change the permission bits to ``mode``; NotImplementedError where the store has none."""
        raise NotImplementedError("this store has no permissions")

    def set_owner(self, url: str, owner: str | None, group: str | None) -> None:
        """Change owner and group by name; NotImplementedError where the store has none."""
        raise NotImplementedError("this store has no owners")

    def capacity(self, url: str) -> StoreCapacity:
        """Return size and use of the store; NotImplementedError where they are not available."""
        raise NotImplementedError("this store does not report its size")


def class_for(scheme: str) -> type[RemoteStore]:
    """Return the class of the store for a scheme; its client library is not imported yet."""
    module, name = _STORES.get(scheme, _OTHERS)
    found: type[RemoteStore] = getattr(importlib.import_module(f"{_FOLDER}.{module}"), name)
    return found
