"""FileSystem of every remote scheme: runs the methods of a store (``store.RemoteStore``) under enforced deadlines.

No client library has a deadline for all its operations, and a thread that blocks in one cannot be ended. So each call
runs in a separate helper process (``pool``), which is killed when a step is not completed in time. Only a store whose
files are in this very process (``memory://``) is called in a thread of it: no other process could access it, and its
calls do not block.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from hopsml.core import traffic
from hopsml.errors import ArgumentError, PathExists, PathNotFound, StorageError, StorageTimeout, StorageUnavailable
from hopsml.storage import causes, tree, urls, waiting
from hopsml.storage.filesystem import FileStatus, FileSystem, StoreCapacity, check_length
from hopsml.storage.remote import server, store
from hopsml.storage.remote.pool import POOL, AllHelpersBusy
from hopsml.storage.remote.store import CHUNK_BYTES, ChannelClosed, FrameChannel
from hopsml.storage.streams import buffered_reader, spooled_writer

_SERVERS_TRIED = 3  # number of servers that are checked after a timeout, for at most one second each


def create(url: str, timeout_s: float) -> RemoteFileSystem:
    """Return the file system of a remote URL; ArgumentError for an unknown scheme."""
    return RemoteFileSystem(url, timeout_s)


def close_all() -> None:
    """End this process's idle helper processes; a later call starts new ones."""
    POOL.close()


def kill_all() -> None:
    """Kill all of this process's helper processes at once; for a process that exits without cleaning up."""
    POOL.kill_all()


@waiting.count_calls_as_waits
class RemoteFileSystem(FileSystem):
    """FileSystem on any remote store; every step has a deadline, enforced by killing its helper process."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self.scheme = urls.split(url)[0]
        self.timeout_s = timeout_s
        self._base = urls.scheme_and_authority(url)
        self._store = store.store_class(self.scheme)
        self._options = self._store.options(url)

    def status(self, url: str) -> FileStatus:
        """Return the attributes of one file or directory; PathNotFound if there is none."""
        return FileStatus(**self._call("look at", "status", url))

    def list_dir(self, url: str) -> list[FileStatus]:
        """Return the entries of a directory by name, without names that are no file names, such as ``..`` in a bucket."""
        entries = [FileStatus(**facts) for facts in self._call("list", "list_dir", url)]
        below = url.rstrip("/") + "/"
        return sorted((one for one in entries if _is_name(one.url.removeprefix(below))), key=lambda entry: entry.name)

    def read_bytes(self, url: str, most: int | None = None) -> bytes:
        """Return the whole content of one file; StorageError if it has more than ``most`` bytes."""
        return self._receive(url, 0, None, most)

    def read_range(self, url: str, offset: int, length: int) -> bytes:
        """Return up to ``length`` bytes from ``offset``; fewer only at the end of the file."""
        return self._receive(url, offset, length)

    def write_bytes(self, url: str, data: bytes, overwrite: bool = True) -> None:
        """Write a file, completely or not at all; missing parents are created."""
        if self._store.is_object_store:
            self._refuse_taken(url, overwrite)
            self._send("write", url, data, about=url, overwrite=overwrite)
            return
        with self._appearing(url, overwrite) as fresh:
            self._send("write", fresh, data, about=url, overwrite=True)

    def append_bytes(self, url: str, data: bytes) -> None:
        """Append to a file, which is created if missing; on an object store it is read and rewritten."""
        if not self._store.is_object_store:
            self._send("append", url, data, about=url)
            return
        try:
            before = self.read_bytes(url)
        except PathNotFound:
            before = b""
        self.write_bytes(url, before + data)

    def upload(self, local: str | os.PathLike[str], url: str, overwrite: bool = True) -> None:
        """Copy one local file to ``url``, completely or not at all; missing parents are created."""
        with self._appearing(url, overwrite) as fresh:
            sent = self._call("write", "upload", fresh, about=url, local=os.path.abspath(local))
            traffic.count(traffic.STORAGE, sent=sent)
            if self.status(fresh).length != sent:
                raise StorageUnavailable(
                    f"cannot write {url}: its length there differs from the {sent} bytes that "
                    "were sent; write it again",
                    url,
                )

    def download(self, url: str, local: str | os.PathLike[str]) -> None:
        """Copy one file to a local path, completely or not at all; an existing file is replaced."""
        target = os.path.abspath(local)
        fresh = urls.temporary_sibling(target)
        try:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            self._call("read", "download", url, local=fresh)
            traffic.count(traffic.STORAGE, received=os.path.getsize(fresh))
            os.replace(fresh, target)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(fresh)
            if isinstance(error, StorageError):
                raise
            raise causes.from_os_error("write", target, error) from error

    def open_read(self, url: str) -> BinaryIO:
        """Return a seekable binary reader, which fetches ranges on demand."""
        found = self.status(url)
        if found.is_dir:
            raise PathExists(f"cannot read {url}: it is a directory, not a file", url)
        return buffered_reader(lambda offset, length: self.read_range(url, offset, length), found.length)

    def open_write(self, url: str, overwrite: bool = True) -> BinaryIO:
        """Return a binary writer to a local temporary file, which is uploaded when it is closed."""
        self._refuse_taken(url, overwrite)
        return spooled_writer(lambda spooled: self.upload(spooled, url, overwrite))

    def make_dirs(self, url: str, mode: int | None = None) -> None:
        """Create a directory with its parents; an existing directory is accepted."""
        self._call("make directory", "make_dirs", url, mode=mode)

    def rename(self, source: str, target: str, overwrite: bool = False) -> None:
        """Rename atomically, but on an object store by a copy and a deletion."""
        self._call(f"rename {source} to", "rename", source, about=target, target=target, overwrite=overwrite)

    def delete(self, url: str, recursive: bool = False) -> bool:
        """Delete a file, an empty directory, or with ``recursive`` a full one; False if there was none."""
        return bool(self._call("delete", "delete", url, recursive=recursive))

    def set_permission(self, url: str, mode: int) -> None:
        """Change the permission bits to ``mode``; StorageError where the store has none."""
        self._call("change the permission of", "set_permission", url, mode=mode)

    def set_owner(self, url: str, owner: str | None = None, group: str | None = None) -> None:
        """Change owner and group by name; None leaves one unchanged.

        Only HDFS's superuser may change an owner. StorageError where the store has none.
        """
        self._call("change the owner of", "set_owner", url, owner=owner, group=group)

    def capacity(self, url: str) -> StoreCapacity:
        """Return size and use of the store; StorageError where they are not available."""
        return StoreCapacity(**self._call("measure", "capacity", url))

    # ------------------------------------------------------------------ atomic writes

    def _refuse_taken(self, url: str, overwrite: bool) -> None:
        with contextlib.suppress(PathNotFound):
            if self.status(url).is_dir:
                raise PathExists(f"cannot write {url}: it is a directory; choose another name", url)
            if not overwrite:
                raise PathExists(
                    f"cannot write {url}: it already exists; allow overwriting or choose another name", url
                )

    @contextlib.contextmanager
    def _appearing(self, url: str, overwrite: bool) -> Iterator[str]:
        """Yield a fresh temporary URL, which is renamed to ``url`` if the block succeeds, else deleted if possible.

        A URL that is temporary itself, or is in a temporary directory, is written directly: readers do not take it for
        complete, and two requests are saved.
        """
        if overwrite and urls.has_temporary_part(url):
            yield url
            return
        self._refuse_taken(url, overwrite)
        fresh = urls.temporary_sibling(url)
        try:
            yield fresh
            self._call("write", "rename", fresh, about=url, target=url, overwrite=overwrite)
        except BaseException as error:  # on Ctrl-C, too, no temporary file may remain
            # A store that has timed out would not respond now, either.
            tree.discard(fresh, self.timeout_s, try_now=not isinstance(error, StorageTimeout))
            raise

    # ------------------------------------------------------------------ calls

    def _call(self, action: str, verb: str, url: str, about: str = "", **arguments: Any) -> Any:
        """Make one request that transfers no chunks over the channel, and return its result.

        ``action`` and ``about`` are for the error's text.
        """
        return self._exchange(action, verb, url, about or url, arguments, self._answer)

    def _receive(self, url: str, offset: int, length: int | None, most: int | None = None) -> bytes:
        pieces: list[bytearray] = []
        arguments = {"offset": offset, "length": length, "most": most}
        expected = self._exchange("read", "read", url, url, arguments, lambda channel: self._answer(channel, pieces))
        check_length(url, expected, most)
        data = b"".join(pieces)
        if len(data) != expected:
            raise StorageUnavailable(f"cannot read {url}: only {len(data)} of {expected} bytes were received", url)
        traffic.count(traffic.STORAGE, received=len(data))
        return data

    def _send(self, verb: str, url: str, data: bytes, about: str, **arguments: Any) -> None:
        view = memoryview(data).cast("B")

        def give(channel: FrameChannel) -> dict[str, Any]:
            for start in range(0, len(view), CHUNK_BYTES):
                answer = self._answer(channel)
                if "ready" not in answer:
                    return answer
                channel.send_data(view[start : start + CHUNK_BYTES], self.timeout_s)
            answer = self._answer(channel)
            if "ready" not in answer:
                return answer
            channel.send({"end": True}, self.timeout_s)
            return self._answer(channel)

        action = "append to" if verb == "append" else "write"
        taken = self._exchange(action, verb, url, about, arguments, give)
        if taken != len(view):
            raise StorageUnavailable(f"cannot write {about}: only {taken} of {len(view)} bytes were accepted", about)
        traffic.count(traffic.STORAGE, sent=len(view))

    def _exchange(
        self,
        action: str,
        verb: str,
        url: str,
        about: str,
        arguments: dict[str, Any],
        talk: Callable[[FrameChannel], dict[str, Any]],
    ) -> Any:
        """Borrow a helper, send the request, ``talk`` until the final response, and convert errors."""
        request = {"verb": verb, "base": self._base, "options": self._options, "url": url, "arguments": arguments}
        try:
            with self._helper(url) as channel:
                channel.send(request, self.timeout_s)
                answer = talk(channel)
        except TimeoutError as error:
            why = str(error) if isinstance(error, AllHelpersBusy) else self._why_silent(url)
            raise self._timed_out(action, about, why) from error
        except ChannelClosed as error:
            raise StorageUnavailable(f"cannot {action} {about}: the storage helper process ended", about) from error
        if "argument" in answer:
            raise ArgumentError(answer["argument"])
        if "local_errno" in answer:
            local = str(arguments.get("local", about))
            number = answer["local_errno"]
            raise causes.from_os_error(f"{action} {about} by way of", local, OSError(number, os.strerror(number)))
        if "error" in answer:
            raise causes.from_text(action, about, answer["error"], answer["text"])
        return answer["ok"]

    @contextlib.contextmanager
    def _helper(self, url: str) -> Iterator[FrameChannel]:
        if self._store.is_in_this_process(url):
            with server.serve_in_thread() as channel:
                yield channel
        else:
            with POOL.lend(self.timeout_s) as helper:
                yield helper.channel

    def _answer(self, channel: FrameChannel, pieces: list[bytearray] | None = None) -> dict[str, Any]:
        """Return the next message other than the end of a step; raw chunks before it are appended to ``pieces``."""
        while True:
            frame = channel.receive(self.timeout_s)
            if isinstance(frame, bytearray):
                if pieces is None:
                    raise ChannelClosed("raw bytes were received instead of an answer")
                pieces.append(frame)
            elif "step" not in frame:
                return frame

    def _timed_out(self, action: str, path: str, why: str) -> StorageTimeout:
        reason = f"; {why}" if why else ""
        return StorageTimeout(
            f"cannot {action} {path}: no call to the storage service ended within {self.timeout_s:g} s{reason}; "
            "check that the service answers, or raise HOPSML_STORAGE_TIMEOUT_S",
            path,
        )

    def _why_silent(self, url: str) -> str:
        """Name the proxy, or describe for each server whether its port accepts connections, after a deadline."""
        if through := self._store.proxy_note(url):
            return through.removeprefix("; ")
        found = []
        for address in self._store.addresses(url)[:_SERVERS_TRIED]:
            host, _, port = address.rpartition(":")
            try:
                socket.create_connection((host.strip("[]"), int(port)), timeout=1.0).close()
                found.append(f"{address} accepts connections but does not answer (frozen or overloaded?)")
            except (OSError, ValueError) as error:
                found.append(f"{address}: {error}")
        return ", ".join(found)


def _is_name(text: str) -> bool:
    """Return True for what is one part of a path; what comes from a server becomes a path of this machine."""
    return text not in ("", ".", "..") and "/" not in text and "\0" not in text
