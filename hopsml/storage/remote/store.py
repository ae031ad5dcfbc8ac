"""What a store must offer to be used through ``adapter.RemoteFileSystem``, and which one speaks a scheme."""

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
    """The client of one store. It is made, and its methods are called, in a helper process, one call at a time.

    Every method takes whole URLs. It may block, for then its process is killed, and it raises what its library raises:
    ``causes`` tells errors apart by the names of their types and their texts. NotImplementedError is for what a kind of
    store does not have: ``RemoteFileSystem`` raises a StorageError with its text then.
    """

    # Of an object store ``write`` shows a file when it is whole, and claims its name; nothing can be appended.
    is_object_store: ClassVar[bool]

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        """``url``: any of the store. ``options``: what the static method of this name said in the calling process."""

    @staticmethod
    def options(url: str) -> dict[str, Any]:
        """What only the calling process knows of the store. ArgumentError where nothing speaks this scheme."""

    @staticmethod
    def addresses(url: str) -> list[str]:
        """``host:port`` of each server behind the store, as far as they are known: to say which one is silent."""

    @staticmethod
    def is_in_this_process(url: str) -> bool:
        """Whether the store's files lie in the calling process itself, so that no other could read them."""

    def status(self, url: str) -> FileStatus:
        """What is known of one file or directory; FileNotFoundError if there is nothing."""

    def list_dir(self, url: str) -> list[FileStatus]:
        """Entries of a directory in any order; NotADirectoryError of a file."""

    def read(self, url: str, offset: int, length: int | None) -> tuple[int, Iterator[bytes]]:
        """How many bytes are there from ``offset``, at most ``length`` (None: to the end), and those bytes in pieces."""

    def write(self, url: str, pieces: Iterator[bytes], overwrite: bool) -> None:
        """Write a new file of these pieces; parents that are missing are made."""

    def make_dirs(self, url: str, mode: int | None) -> None:
        """As ``FileSystem.make_dirs``; these and the following have the arguments of the methods of that name there."""

    def rename(self, source: str, target: str, overwrite: bool) -> None:
        """As ``FileSystem.rename``; FileExistsError or whatever the library raises where the target is taken."""

    def delete(self, url: str, recursive: bool) -> bool:
        """As ``FileSystem.delete``; an OSError that says "not empty" for a directory with entries."""

    # What object stores do not have:

    def append(self, url: str, pieces: Iterator[bytes]) -> None:
        """Add pieces to the end of a file, which is made if missing. Not asked of an object store."""
        raise NotImplementedError("this store cannot append")

    def set_permission(self, url: str, mode: int) -> None:
        """As ``FileSystem.set_permission``; NotImplementedError where the store has none."""
        raise NotImplementedError("this store has no permissions")

    def set_owner(self, url: str, owner: str | None, group: str | None) -> None:
        """As ``FileSystem.set_owner``; NotImplementedError where the store has none."""
        raise NotImplementedError("this store has no owners")

    def capacity(self, url: str) -> StoreCapacity:
        """As ``FileSystem.capacity``; NotImplementedError where the store has none."""
        raise NotImplementedError("this store does not tell its size")


def class_for(scheme: str) -> type[RemoteStore]:
    """The class of the store that speaks a scheme; its client library is not imported yet."""
    module, name = _STORES.get(scheme, _OTHERS)
    found: type[RemoteStore] = getattr(importlib.import_module(f"{_FOLDER}.{module}"), name)
    return found
