"""The process that holds the HDFS client: started by ``hdfs_pool`` as ``python -m
hopsml.storage.hdfs_process``.

hdfs-native has no timeout on NameNode calls and must not live in a process that forks, so it lives here,
where a stuck call ends by killing the process. Requests come over a socket, one at a time; every chunk is
announced with a ``{"step": bytes}`` message, so that the other side's deadline is one for each step. Files on
this machine are read and written here, so that their bytes do not cross the socket. The process ends with its
parent: at the end of the socket, and when the parent dies by whatever cause, even in the middle of a blocked
call.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from hopsml.storage import privacy
from hopsml.storage.frames import CHUNK_BYTES, Channel, ChannelClosed

_OPEN_FILE_WAIT_S = 2.0  # how long to wait for a file's length to settle: see _open_settled
_READERS_KEPT = 8
_MODES_KEPT = 256
_IDLE_S = 90.0  # longer than hdfs_pool lends an idle process


class LocalFileError(Exception):
    """An error of this machine's disk during a transfer; carries the errno."""


class Service:
    """Carries out requests, one at a time."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._clients: dict[tuple[str, str], Any] = {}
        self._readers: dict[tuple[int, str, int, float], Any] = {}
        self._modes: dict[tuple[int, str], int] = {}  # of folders that decide for what lies in them; asked once

    def serve(self) -> None:
        """Until the other side is gone, or has asked for nothing for a while."""
        while True:
            request = self._channel.receive(_IDLE_S)
            if not isinstance(request, dict):
                raise ChannelClosed("raw bytes without a request")
            try:
                answer: dict[str, Any] = {"ok": self._carry_out(request)}
            except ChannelClosed:
                raise
            except LocalFileError as error:
                answer = {"local_errno": error.args[0], "text": error.args[1]}
            except Exception as error:  # noqa: BLE001  whatever it is, the caller tells the causes apart
                answer = {"error": type(error).__name__, "text": str(error)}
            self._channel.send(answer)

    def _carry_out(self, request: dict[str, Any]) -> Any:
        verbs: dict[str, Callable[..., Any]] = {
            "status": self._status,
            "list": self._list,
            "read": self._read,
            "read_range": self._read_range,
            "write": self._write,
            "append": self._append,
            "upload": self._upload,
            "download": self._download,
            "make_dirs": self._make_dirs,
            "rename": self._rename,
            "delete": self._delete,
            "set_permission": self._set_permission,
            "set_owner": self._set_owner,
        }
        verb = verbs[request["verb"]]
        return verb(self._client(request["base"], request["config"]), **request["arguments"])

    def _client(self, base: str, config: dict[str, str]) -> Any:
        from hdfs_native import Client

        key = (base, repr(sorted(config.items())))
        if key not in self._clients:
            self._clients[key] = Client(base, config)
        return self._clients[key]

    # ------------------------------------------------------------------ one remote call each

    def _status(self, client: Any, path: str) -> dict[str, Any]:
        return _facts(client.get_file_info(path))

    def _list(self, client: Any, path: str) -> list[dict[str, Any]]:
        found = list(client.list_status(path))
        alone = len(found) == 1 and not found[0].isdir and _name(found[0].path) == _name(path)
        if alone and not client.get_file_info(path).isdir:  # of a file HDFS lists the file
            raise NotADirectoryError(f"{path} is not a directory")
        return [_facts(entry) for entry in found]

    def _make_dirs(self, client: Any, path: str, mode: int | None) -> None:
        if mode is None:
            client.mkdirs(path, privacy.of_folder(self._above(client, path)), create_parent=True)
            return
        try:
            client.mkdirs(path, mode)
        except FileNotFoundError:  # it has no parents yet, which must not get the mode as well
            self._make_dirs(client, _parent(path), None)
            client.mkdirs(path, mode)

    def _above(self, client: Any, path: str) -> int:
        """The permission of the folder that decides how open a file is, of its run or the nearest there is."""
        folder = privacy.decisive(path)
        while True:
            known = self._modes.get((id(client), folder))
            if known is not None:
                return known
            try:
                mode = int(client.get_file_info(folder).permission)
            except FileNotFoundError:
                if folder == "/":
                    raise
                folder = _parent(folder)
                continue
            while len(self._modes) >= _MODES_KEPT:
                self._modes.pop(next(iter(self._modes)))
            self._modes[id(client), folder] = mode
            return mode

    def _rename(self, client: Any, source: str, target: str, overwrite: bool) -> None:
        client.rename(source, target, overwrite)

    def _delete(self, client: Any, path: str, recursive: bool) -> bool:
        return bool(client.delete(path, recursive))

    def _set_permission(self, client: Any, path: str, mode: int) -> None:
        client.set_permission(path, mode)

    def _set_owner(self, client: Any, path: str, owner: str | None, group: str | None) -> None:
        client.set_owner(path, owner, group)

    # ------------------------------------------------------------------ bytes

    def _read(self, client: Any, path: str) -> int:
        reader, total = self._open_settled(client, path)
        got = 0
        while got < total:
            piece = reader.read(min(CHUNK_BYTES, total - got))
            if not piece:
                raise EOFError(f"unexpected end of file: {got} of {total} bytes")
            self._channel.send_data(piece)
            got += len(piece)
        return got

    def _read_range(self, client: Any, path: str, offset: int, length: int) -> int:
        info = client.get_file_info(path)
        key = (id(client), path, info.length, info.modification_time)
        if key not in self._readers:
            while len(self._readers) >= _READERS_KEPT:
                self._readers.pop(next(iter(self._readers)))
            self._readers[key] = self._open_settled(client, path)[0]
        reader = self._readers[key]
        end = min(offset + length, len(reader))
        at = offset
        while at < end:
            piece = reader.read_range(at, min(CHUNK_BYTES, end - at))
            if not piece:
                raise EOFError(f"unexpected end of file: {at} of {end} bytes")
            self._channel.send_data(piece)
            at += len(piece)
        return max(0, end - offset)

    def _open_settled(self, client: Any, path: str) -> tuple[Any, int]:
        """A reader that sees all that the NameNode knows of; for a moment after a close it does not.

        hdfs-native leaves the last block out as long as it is not complete, and would return too few bytes
        without a word.
        """
        deadline = time.monotonic() + _OPEN_FILE_WAIT_S
        while True:
            reader = client.read(path)
            readable, known = len(reader), client.get_file_info(path).length
            if readable >= known:
                return reader, readable
            if time.monotonic() > deadline:
                raise EOFError(f"unexpected end of file: {readable} of {known} bytes, another process is writing it")
            time.sleep(0.02)

    def _write(self, client: Any, path: str) -> int:
        """Bytes come as raw frames until a message ends them; each is acknowledged."""
        with self._creating(client, path) as writer:
            return self._take_chunks(writer)

    def _append(self, client: Any, path: str) -> int:
        try:
            writer = client.append(path)
        except FileNotFoundError:
            writer = self._create(client, path)
        taken = self._take_chunks(writer)
        writer.close()
        return taken

    def _take_chunks(self, writer: Any) -> int:
        taken = 0
        self._step(0)
        while isinstance(chunk := self._channel.receive(), bytearray):
            writer.write(bytes(chunk))
            taken += len(chunk)
            self._step(len(chunk))
        return taken

    def _upload(self, client: Any, path: str, local: str) -> int:
        sent = 0
        with _local(open, local, "rb", 0) as file, self._creating(client, path) as writer:
            while piece := _local(file.read, CHUNK_BYTES):
                writer.write(piece)
                sent += len(piece)
                self._step(len(piece))
        return sent

    def _download(self, client: Any, path: str, local: str) -> int:
        reader, total = self._open_settled(client, path)
        got = 0
        with _local(open, local, "xb", 0) as file:
            while got < total:
                piece = reader.read(min(CHUNK_BYTES, total - got))
                if not piece:
                    raise EOFError(f"unexpected end of file: {got} of {total} bytes")
                _local(_write_all, file, piece)
                got += len(piece)
                self._step(len(piece))
        return got

    def _create(self, client: Any, path: str) -> Any:
        """Parents that are missing get the permission of what they lie in from the NameNode."""
        from hdfs_native import WriteOptions

        permission = privacy.of_file(self._above(client, path))
        return client.create(path, WriteOptions(overwrite=True, create_parent=True, permission=permission))

    @contextlib.contextmanager
    def _creating(self, client: Any, path: str) -> Any:
        """A writer that is closed when the block ends well, and whose file is deleted when it fails."""
        writer = self._create(client, path)
        try:
            yield writer
            writer.close()
        except BaseException:
            with contextlib.suppress(Exception):
                client.delete(path)
            raise

    def _step(self, count: int) -> None:
        self._channel.send({"step": count})


def _write_all(file: Any, data: bytes) -> None:
    view = memoryview(data)
    while view:  # an unbuffered write may take a part
        view = view[file.write(view) :]


def _local(call: Callable[..., Any], *arguments: Any) -> Any:
    """A call on this machine's disk: its errors are told apart from HDFS's."""
    try:
        return call(*arguments)
    except OSError as error:
        raise LocalFileError(error.errno or 0, str(error)) from error


def _parent(path: str) -> str:
    return path.rstrip("/").rpartition("/")[0] or "/"


def _name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _facts(info: Any) -> dict[str, Any]:
    return {
        "path": info.path,
        "length": info.length,
        "is_dir": info.isdir,
        "permission": info.permission,
        "owner": info.owner,
        "group": info.group,
        "modified_ms": info.modification_time,
        "accessed_ms": info.access_time,
        "replication": info.replication or 0,
        "block_size": info.blocksize or 0,
    }


def _die_with(parent: int, parent_pid: int) -> None:
    """End this process when its parent's ends. ``parent`` is a pidfd, or -1 on kernels without them.

    PR_SET_PDEATHSIG alone would end it with the THREAD that started it.
    """
    if parent >= 0:
        select.select([parent], [], [])
    else:
        while os.getppid() == parent_pid:
            time.sleep(0.5)
    os._exit(0)


def main(arguments: list[str]) -> None:
    """``socket-fd pidfd parent-pid``, as given by hdfs_pool."""
    socket_fd, parent, parent_pid = map(int, arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    threading.Thread(target=_die_with, args=(parent, parent_pid), daemon=True).start()
    channel = Channel(socket.socket(fileno=socket_fd))
    with contextlib.suppress(ChannelClosed, TimeoutError):
        Service(channel).serve()
    os._exit(0)  # the client's own threads may be stuck


if __name__ == "__main__":
    main(sys.argv[1:])
