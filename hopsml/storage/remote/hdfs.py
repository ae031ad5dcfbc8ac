"""Store of ``hdfs://`` (and ``hopsfs://``, ``viewfs://``) through hdfs-native.

The library must not be loaded in a process that forks.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from hopsml.storage import urls
from hopsml.storage.filesystem import FileStatus
from hopsml.storage.remote.hadoop import HadoopStore, client_settings, rpc_addresses
from hopsml.storage.remote.store import CHUNK_BYTES

_OPEN_FILE_WAIT_S = 2.0  # longest wait until all of a file is readable: see _open_settled
_READERS_KEPT = 8


class HdfsStore(HadoopStore):
    """HDFS store by its own protocol; ``hdfs:///`` is the file system of ``fs.defaultFS``."""

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        from hdfs_native import Client

        super().__init__(url, options)
        scheme = "hdfs" if self._scheme == "hopsfs" else self._scheme
        self._hdfs = Client(f"{scheme}://{self._authority}", client_settings(url))
        self._readers: dict[tuple[str, int, float], Any] = {}

    @staticmethod
    def addresses(url: str) -> list[str]:
        """Return ``host:port`` of each NameNode behind the URL."""
        return rpc_addresses(url)

    def status(self, url: str) -> FileStatus:
        """Return the attributes of one file or directory."""
        return _status(url, self._hdfs.get_file_info(_path(url)))

    def list_dir(self, url: str) -> list[FileStatus]:
        """Return the entries of a directory; NotADirectoryError for a file."""
        found = list(self._hdfs.list_status(_path(url)))
        alone = len(found) == 1 and not found[0].isdir and urls.name(found[0].path) == urls.name(url)
        if alone and not self.status(url).is_dir:  # for a file HDFS lists the file itself
            raise NotADirectoryError(f"{url} is not a directory")
        return [_status(urls.join(url, urls.name(entry.path)), entry) for entry in found]

    def read(self, url: str, offset: int, length: int | None) -> tuple[int, Iterator[bytes]]:
        """Return the number of bytes and the bytes, in pieces, from ``offset`` on.

        The reader of a range is retained for the next range of the same file.
        """
        if length is None:
            whole = self._open_settled(url)
            return len(whole), iter(lambda: whole.read(CHUNK_BYTES), b"")
        info = self._hdfs.get_file_info(_path(url))
        key = (_path(url), info.length, info.modification_time)
        if key not in self._readers:
            while len(self._readers) >= _READERS_KEPT:
                self._readers.pop(next(iter(self._readers)))
            self._readers[key] = self._open_settled(url)
        end = max(offset, min(offset + length, len(self._readers[key])))
        return end - offset, _range(self._readers[key], offset, end)

    def write(self, url: str, pieces: Iterator[bytes], overwrite: bool) -> None:
        """Write a new file with the permission of its folder; a file that fails half-way is deleted."""
        writer = self._create(url, overwrite)
        try:
            for piece in pieces:
                writer.write(piece)
            writer.close()
        except BaseException:  # a panic in the client's Rust code is not an Exception
            with contextlib.suppress(Exception):  # the first error is more useful than a second one
                self._hdfs.delete(_path(url))
            raise

    def append(self, url: str, pieces: Iterator[bytes]) -> None:
        """Append to a file, which is created if missing."""
        try:
            writer = self._hdfs.append(_path(url))
        except FileNotFoundError:
            writer = self._create(url, overwrite=True)
        for piece in pieces:
            writer.write(piece)
        writer.close()

    def make_dirs(self, url: str, mode: int | None) -> None:
        """Create a directory with its parents; ``mode`` applies to the last one only."""
        if mode is None:
            self._hdfs.mkdirs(_path(url), self._new_folder_mode(url), create_parent=True)
            return
        try:
            self._hdfs.mkdirs(_path(url), mode)
        except FileNotFoundError:  # parents are missing, which must not get the mode as well
            self.make_dirs(urls.parent(url), None)
            self._hdfs.mkdirs(_path(url), mode)

    def rename(self, source: str, target: str, overwrite: bool) -> None:
        """Rename a file or directory atomically; ``overwrite`` replaces an existing target."""
        self._hdfs.rename(_path(source), _path(target), overwrite)

    def delete(self, url: str, recursive: bool) -> bool:
        """Delete a file or directory; False if there was none."""
        return bool(self._hdfs.delete(_path(url), recursive))

    def set_permission(self, url: str, mode: int) -> None:
        """Change the permission bits to ``mode``, as in ``0o755``."""
        self._hdfs.set_permission(_path(url), mode)

    def set_owner(self, url: str, owner: str | None, group: str | None) -> None:
        """Change owner and group by name; None leaves one unchanged."""
        self._hdfs.set_owner(_path(url), owner, group)

    def _create(self, url: str, overwrite: bool) -> Any:
        """Create a file; the NameNode gives missing parents the permission of the directory above."""
        from hdfs_native import WriteOptions

        permission = self._new_file_mode(url)
        options = WriteOptions(overwrite=overwrite, create_parent=True, permission=permission)
        return self._hdfs.create(_path(url), options)

    def _open_settled(self, url: str) -> Any:
        """Return a reader of all bytes that the NameNode knows, which are not all readable right after a close.

        hdfs-native leaves the last block out while it is not complete, and would return too few bytes without an error.
        """
        deadline = time.monotonic() + _OPEN_FILE_WAIT_S
        while True:
            reader = self._hdfs.read(_path(url))
            readable, known = len(reader), self._hdfs.get_file_info(_path(url)).length
            if readable >= known:
                return reader
            if time.monotonic() > deadline:
                raise EOFError(f"unexpected end of file: {readable} of {known} bytes, another process is writing it")
            time.sleep(0.02)


def _range(reader: Any, at: int, end: int) -> Iterator[bytes]:
    while at < end and (piece := reader.read_range(at, min(CHUNK_BYTES, end - at))):
        yield piece
        at += len(piece)


def _path(url: str) -> str:
    return urls.split(url)[2]


def _status(url: str, info: Any) -> FileStatus:
    return FileStatus(
        url=url,
        is_dir=info.isdir,
        length=0 if info.isdir else info.length,
        modified_s=info.modification_time / 1000,
        owner=info.owner,
        group=info.group,
        permission=info.permission,
        replication=info.replication or 0,
        block_size=info.blocksize or 0,
        accessed_s=info.access_time / 1000,
    )
