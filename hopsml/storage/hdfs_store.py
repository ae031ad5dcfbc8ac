"""``hdfs://`` (and ``hopsfs://``, ``viewfs://``) through hdfs-native, in helper processes: see
``hdfs_process``.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

from hopsml import settings
from hopsml.errors import PathExists, PathNotFound, StorageError, StorageTimeout, StorageUnavailable
from hopsml.storage import causes, deadline, hadoop_web, leftovers, urls
from hopsml.storage.filesystem import Capacity, FileStatus
from hopsml.storage.frames import CHUNK_BYTES, Channel, ChannelClosed
from hopsml.storage.hdfs_pool import POOL, AllBusy
from hopsml.storage.streams import buffered_reader, spooled_writer

# Without a setting of the user's, a lone NameNode that refuses is given up after about 3 s (174 s by
# default). With several NameNodes the client's own failover settings hold.
_LONE_NAMENODE = {
    "dfs.client.failover.max.attempts": "4",
    "dfs.client.failover.sleep.base.millis": "200",
    "dfs.client.failover.sleep.max.millis": "1000",
}


def create(url: str, timeout_s: float) -> HdfsFileSystem:
    """The file system for ``hdfs://authority``; ``hdfs:///`` stands for ``fs.defaultFS``."""
    return HdfsFileSystem(url, timeout_s)


def close_all() -> None:
    """End idle helper processes."""
    POOL.close()


class HdfsFileSystem:
    """FileSystem on HDFS. Every step has a deadline, kept by killing the helper process."""

    scheme = "hdfs"

    def __init__(self, url: str, timeout_s: float) -> None:
        scheme, authority, _ = urls.split(url)
        self.timeout_s = timeout_s
        self._base = f"{'hdfs' if scheme == 'hopsfs' else scheme}://{authority}"

    def status(self, url: str) -> FileStatus:
        """PathNotFound if there is nothing."""
        return _status(url, self._call("look at", "status", url))

    def list_dir(self, url: str) -> list[FileStatus]:
        """Entries by name."""
        found = self._call("list", "list", url)
        entries = [_status(urls.join(url, urls.name(facts["path"])), facts) for facts in found]
        return sorted(entries, key=lambda entry: entry.name)

    def read_bytes(self, url: str) -> bytes:
        """The whole file; its length is checked."""
        return self._receive("read", url)

    def read_range(self, url: str, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes from ``offset``."""
        return self._receive("read_range", url, offset=offset, length=length)

    def write_bytes(self, url: str, data: bytes, overwrite: bool = True) -> None:
        """Whole or not at all."""
        with self._appearing(url, overwrite) as fresh:
            self._send("write", fresh, data, about=url)

    def append_bytes(self, url: str, data: bytes) -> None:
        """Add to the end of a file, made if missing."""
        self._send("append", url, data, about=url)

    def upload(self, local: str | os.PathLike[str], url: str, overwrite: bool = True) -> None:
        """One local file, whole or not at all; the helper reads it itself."""
        with self._appearing(url, overwrite) as fresh:
            sent = self._call("write", "upload", fresh, about=url, local=os.path.abspath(local))
            if self.status(fresh).length != sent:
                raise StorageUnavailable(
                    f"cannot write {url}: HDFS holds another length than the {sent} bytes sent", url
                )

    def download(self, url: str, local: str | os.PathLike[str]) -> None:
        """One file to a local path, whole or not at all; the helper writes it itself."""
        target = os.path.abspath(local)
        fresh = urls.temporary_sibling(target)
        try:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            self._call("read", "download", url, local=fresh)
            os.replace(fresh, target)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(fresh)
            if isinstance(error, StorageError):
                raise
            raise causes.from_os_error("write", target, error) from error

    def open_read(self, url: str) -> BinaryIO:
        """A seekable binary reader; ranges are read as they are asked for."""
        found = self.status(url)
        if found.is_dir:
            raise PathExists(f"cannot read {url}: it is a directory, not a file", url)
        return buffered_reader(lambda offset, length: self.read_range(url, offset, length), found.length)

    def open_write(self, url: str, overwrite: bool = True) -> BinaryIO:
        """A binary writer by way of a local temporary file, uploaded when it is closed."""
        self._refuse_taken(url, overwrite)
        return spooled_writer(lambda spooled: self.upload(spooled, url, overwrite))

    def make_dirs(self, url: str, mode: int | None = None) -> None:
        """With parents, as open as what they lie in."""
        self._call("make directory", "make_dirs", url, mode=mode)

    def rename(self, source: str, target: str, overwrite: bool = False) -> None:
        """In one step of the NameNode."""
        old, new = urls.split(source)[2], urls.split(target)[2]
        self._call(f"rename {source} to", "rename", target, source=old, target=new, overwrite=overwrite)

    def delete(self, url: str, recursive: bool = False) -> bool:
        """Whether there was something."""
        return bool(self._call("delete", "delete", url, recursive=recursive))

    def set_permission(self, url: str, mode: int) -> None:
        """As in ``0o755``."""
        self._call("change the permission of", "set_permission", url, mode=mode)

    def set_owner(self, url: str, owner: str | None = None, group: str | None = None) -> None:
        """What is None stays. Only HDFS's superuser may change an owner."""
        self._call("change the owner of", "set_owner", url, owner=owner, group=group)

    def capacity(self, url: str) -> Capacity:
        """Of the whole HDFS, told by the NameNode's web address (``dfs.namenode.http-address``)."""
        return hadoop_web.capacity(url, self.timeout_s)

    def close(self) -> None:
        """End idle helper processes."""
        POOL.close()

    # ------------------------------------------------------------------ hands

    def _refuse_taken(self, url: str, overwrite: bool) -> None:
        with contextlib.suppress(PathNotFound):
            if self.status(url).is_dir:
                raise PathExists(f"cannot write {url}: it is a directory; choose another name", url)
            if not overwrite:
                raise PathExists(
                    f"cannot write {url}: it exists already; allow overwriting or choose another name", url
                )

    @contextlib.contextmanager
    def _appearing(self, url: str, overwrite: bool) -> Iterator[str]:
        """A fresh temporary URL; renamed to ``url`` when the block ends well, else deleted if that is
        possible. A URL that is temporary itself, or lies in a temporary directory, is written as it is: nobody takes
        it for whole, and the NameNode is asked twice less.
        """
        if overwrite and urls.has_temporary_part(url):
            yield url
            return
        self._refuse_taken(url, overwrite)
        fresh = urls.temporary_sibling(url)
        try:
            yield fresh
            self._call(
                "write",
                "rename",
                url,
                source=urls.split(fresh)[2],
                target=urls.split(url)[2],
                overwrite=overwrite,
            )
        except BaseException as error:
            # Whoever did not answer would not answer now, either.
            leftovers.discard(fresh, self.timeout_s, try_now=not isinstance(error, StorageTimeout))
            raise

    def _call(self, action: str, verb: str, url: str, about: str = "", **arguments: Any) -> Any:
        """One request without chunks from here; ``action`` and ``about`` are for the error's text."""
        return self._exchange(action, verb, url, about or url, arguments, lambda channel: self._answer(channel))

    def _receive(self, verb: str, url: str, **arguments: Any) -> bytes:
        pieces: list[bytearray] = []

        def take(channel: Channel) -> dict[str, Any]:
            while isinstance(frame := channel.receive(self.timeout_s), bytearray):
                pieces.append(frame)
            return frame

        expected = self._exchange("read", verb, url, url, arguments, take)
        data = b"".join(pieces)
        if len(data) != expected:
            raise StorageUnavailable(f"cannot read {url}: {len(data)} of {expected} bytes came", url)
        return data

    def _send(self, verb: str, url: str, data: bytes, about: str) -> None:
        view = memoryview(data).cast("B")

        def give(channel: Channel) -> dict[str, Any]:
            for start in range(0, len(view), CHUNK_BYTES):
                answer = self._next_message(channel)
                if "step" not in answer:
                    return answer
                channel.send_data(view[start : start + CHUNK_BYTES], self.timeout_s)
            answer = self._next_message(channel)
            if "step" not in answer:
                return answer
            channel.send({"end": True}, self.timeout_s)
            return self._answer(channel)

        taken = self._exchange("append to" if verb == "append" else "write", verb, url, about, {}, give)
        if taken != len(view):
            raise StorageUnavailable(f"cannot write {about}: {taken} of {len(view)} bytes were taken", about)

    def _exchange(
        self,
        action: str,
        verb: str,
        url: str,
        about: str,
        arguments: dict[str, Any],
        talk: Callable[[Channel], dict[str, Any]],
    ) -> Any:
        """Borrow a helper, send the request, ``talk`` until the answer, tell errors apart."""
        path = {} if verb == "rename" else {"path": urls.split(url)[2]}
        request = {
            "verb": verb,
            "base": self._base,
            "config": self._config(),
            "arguments": {**path, **arguments},
        }
        try:
            with POOL.lend(self.timeout_s) as helper:
                helper.channel.send(request, self.timeout_s)
                answer = talk(helper.channel)
        except TimeoutError as error:
            why = str(error) if isinstance(error, AllBusy) else self._why_silent()
            raise deadline.timed_out(action, about, self.timeout_s, why) from error
        except ChannelClosed as error:
            raise StorageUnavailable(f"cannot {action} {about}: the HDFS helper process ended", about) from error
        if "local_errno" in answer:
            local = str(arguments.get("local", about))
            raise causes.from_os_error(f"{action} {about} by way of", local, _os_error(answer))
        if "error" in answer:
            raise causes.from_text(action, about, answer["error"], answer["text"])
        return answer["ok"]

    def _answer(self, channel: Channel) -> dict[str, Any]:
        while "step" in (message := self._next_message(channel)):
            pass
        return message

    def _next_message(self, channel: Channel) -> dict[str, Any]:
        frame = channel.receive(self.timeout_s)
        if isinstance(frame, bytearray):
            raise ChannelClosed("raw bytes where an answer was due")
        return frame

    def _config(self) -> dict[str, str]:
        known = settings.hadoop_settings()
        if len(_namenodes(self._base, known)) > 1 or urls.split(self._base)[0] == "viewfs":
            return {}
        return {key: value for key, value in _LONE_NAMENODE.items() if key not in known}

    def _why_silent(self) -> str:
        """What each NameNode's port does: asked after a deadline has passed, a second at most for each."""
        found = []
        for address in _namenodes(self._base, settings.hadoop_settings())[:3]:
            host, _, port = address.rpartition(":")
            try:
                socket.create_connection((host or port, int(port) if host else 8020), timeout=1.0).close()
                found.append(f"{address} accepts connections but does not answer (frozen or overloaded?)")
            except (OSError, ValueError) as error:
                found.append(f"{address}: {error}")
        return ", ".join(found)


def _namenodes(base: str, known: Mapping[str, str]) -> list[str]:
    """RPC addresses behind an ``hdfs://authority``: one, or those of a name service."""
    authority = urls.split(base)[1] or urls.split(known.get("fs.defaultFS", "hdfs://"))[1]
    ids = [part.strip() for part in known.get(f"dfs.ha.namenodes.{authority}", "").split(",") if part.strip()]
    behind = [known.get(f"dfs.namenode.rpc-address.{authority}.{node}", "") for node in ids]
    return [address for address in behind if address] or ([authority] if authority else [])


def _os_error(answer: dict[str, Any]) -> OSError:
    return OSError(answer["local_errno"], os.strerror(answer["local_errno"]))


def _status(url: str, facts: dict[str, Any]) -> FileStatus:
    return FileStatus(
        url=url,
        is_dir=facts["is_dir"],
        length=0 if facts["is_dir"] else facts["length"],
        modified_s=facts["modified_ms"] / 1000,
        owner=facts["owner"],
        group=facts["group"],
        permission=facts["permission"],
        replication=facts["replication"],
        block_size=facts["block_size"],
        accessed_s=facts["accessed_ms"] / 1000,
    )
