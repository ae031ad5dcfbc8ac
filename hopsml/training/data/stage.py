"""Stage: a process on an agent's host that stores the rows sent by Spark's tasks, and serves them to workers.

An Arrow Flight server with the run's own token and a certificate of its own, which clients show as well: gRPC reads a
request whole, however large, before anybody can look at its token. An attempt at a partition is one Arrow file:
workers on the same machine map it, others fetch record batches of it. Which attempts count is not known here: the driver
publishes a table of them, for which workers may wait.

``StageEndpoint`` receives Arrow files from Spark's JVM (``native/spark_push``), over TLS. A task sends the token and the
file name, each preceded by its length in two bytes; then pieces of the file, each preceded by its length in four bytes;
then a length of 0. The reply is an error message preceded by its length in two bytes, empty if the file is stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import re
import resource
import secrets
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.flight as flight

from hopsml.cluster.agent import network
from hopsml.cluster.shared.acceptor import Acceptor, ConnectionLimits, Pending, log_once_per_kind
from hopsml.cluster.shared.tls import make_key_pair, server_context
from hopsml.cluster.worker.sidecar import SidecarSeat, Tell
from hopsml.core.callbacks import nonblocking_logger
from hopsml.training.data.frame_log import FrameTable, StageAddress, StagedShard, attempt_file_path, decode_table
from hopsml.training.data.staged_rows import CERTIFIED, PUBLISH, TABLE, TableRequest, decode_fetch, decode_question

_FILE = re.compile(r"data-(\w+)/\d+-\d+\.arrow")  # as frame_log.py names them
SHARD_BYTES = 16 << 20  # a shard has at least so many bytes, if the partition has them
_TRIES = 10  # number of ports that are tried
_WAIT_S = 5.0  # longest wait for a table; the worker then requests it again
_Server = TypeVar("_Server")
log = nonblocking_logger("hopsml.data")
_HEAD_S = 15.0  # deadline for the TLS handshake, token and name
_MOST_PENDING = 256  # unauthenticated connections, each with a thread
_SILENCE_S = 60  # idle time after which TCP keepalive checks the other machine
_PIECE = 1 << 20
_MOST_HEAD = 1 << 10  # longest token or name, in bytes
_SHORT, _LONG = struct.Struct(">H"), struct.Struct(">i")


class StageFolder:
    """Folder of a stage, in which tasks on the same machine write as well (``native/spark_push``)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def file_path(self, file: str) -> Path:
        """Return the path of an attempt's file. Raises ValueError for any other name."""
        if not _FILE.fullmatch(file):
            raise ValueError(f"{file!r} is none of this stage's files")
        return self._folder / file

    @contextlib.contextmanager
    def open_for_writing(self, file: str) -> Iterator[BinaryIO]:
        """Open a file for writing, which gets its name once the context ends without an error.

        Raises:
            ValueError: the name is not that of an attempt's file.
            OSError: the file cannot be written; the message names the host and the folder.
        """
        path = self.file_path(file)
        part = path.with_suffix(".arrow.part")
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb", buffering=0) as content:
                yield content
            part.rename(path)
        except OSError as error:
            where = f"{socket.gethostname()} cannot store the rows of {path.parent.name} in {path.parent}"
            raise OSError(error.errno, f"{where}: {error.strerror or error}") from error
        finally:
            with contextlib.suppress(OSError):
                part.unlink()

    def delete_unlisted(self, table: FrameTable) -> None:
        """Delete the attempts that a settled table does not list; a table that is not settled deletes nothing."""
        if not table.is_settled:
            return
        counting = {self._folder / one.file_path(table.name) for one in table.partitions}
        for path in self._folder.glob(attempt_file_path(table.name, "*", "*")):
            if path not in counting:
                path.unlink(missing_ok=True)


def serve(seat: SidecarSeat, tell: Tell) -> None:
    """Open the stage, send its address to the driver and to this agent's workers, and serve until the process ends.

    Args:
        seat: folder, host and port range of the stage.
        tell: sends the encoded ``StageAddress`` to the driver.
    """
    # Flight accepts every connection, and closes idle ones after two minutes: until then files need free descriptors.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    certificate, key = make_key_pair(CERTIFIED)
    token, folder = secrets.token_urlsafe(32), StageFolder(Path(seat.folder))
    host = f"[{seat.host}]" if ":" in seat.host else seat.host
    stage = _opened(seat, lambda port: StageServer(folder, token, f"grpc+tls://{host}:{port}", certificate, key))
    family = socket.AF_INET6 if ":" in seat.host else socket.AF_INET
    listening = _opened(seat, lambda port: socket.create_server((seat.host, port), family=family))
    door = StageEndpoint(listening, server_context(certificate, key), token, folder)
    door.serve()
    url = f"grpc+tls://{host}:{stage.port}"
    address = StageAddress(
        url,
        certificate.decode(),
        token,
        socket.gethostname(),
        seat.folder,
        seat.host,
        door.port,
        client_key=key.decode(),
    )
    data = msgspec.msgpack.encode(address)
    seat.write_address(data)
    tell(data)
    stage.serve()


def _opened(seat: SidecarSeat, open_at: Callable[[int], _Server]) -> _Server:
    """Open a server at a free port of the agent's range, or at any port.

    Try again if another process takes the port first.
    """
    for tries_left in reversed(range(_TRIES)):
        port = 0
        if seat.port_range is not None:
            with network.hold_port(seat.host, seat.port_range) as held:
                port = held.port
        try:
            return open_at(port)
        except (OSError, pa.ArrowException):
            if not tries_left:
                raise
    raise AssertionError("unreachable")


class StageServer(flight.FlightServerBase):  # type: ignore[misc]
    """Arrow Flight server that receives and serves record batches, and stores the newest table of each DataFrame."""

    def __init__(self, folder: StageFolder, token: str, url: str, certificate: bytes, key: bytes) -> None:
        super().__init__(
            url,
            tls_certificates=[(certificate, key)],
            verify_client=True,
            root_certificates=certificate,
            middleware={"token": _OnlyWithToken(token)},
        )
        self._folder = folder
        self._tables: dict[str, FrameTable] = {}
        self._changed = threading.Condition()

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Store one attempt at a partition, and reply with its shards once all of it is stored."""
        name, partition, attempt = (part.decode() for part in descriptor.path)
        try:
            with self._folder.open_for_writing(attempt_file_path(name, partition, attempt)) as file:
                shards = _write(file, reader)
        except (OSError, ValueError) as error:
            raise flight.FlightServerError(str(getattr(error, "strerror", None) or error)) from error
        writer.write(msgspec.msgpack.encode(shards))

    def do_get(self, context: Any, ticket: Any) -> Any:
        """Return the record batches of one attempt that a ``FetchRequest`` ticket selects."""
        wanted = decode_fetch(ticket.ticket)
        try:
            file = pa.ipc.open_file(pa.memory_map(str(self._folder.file_path(wanted.file))))
        except (OSError, ValueError) as error:
            raise flight.FlightServerError(f"{wanted.file} is not here: {error}") from error
        batches = (file.get_batch(number) for number in range(wanted.first, wanted.first + wanted.count))
        if wanted.rows:
            batches = (file.get_batch(wanted.first).slice(0, wanted.rows) for _ in range(1))
        return flight.GeneratorStream(file.schema, batches)

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:
        """Handle ``publish``, which stores the driver's table, or ``table``, which returns a newer one."""
        if action.type == PUBLISH:
            self._publish(decode_table(action.body))
        elif action.type == TABLE:
            question = decode_question(action.body)
            if (table := self._newer(question)) is not None:
                yield msgspec.msgpack.encode(table)
        else:
            raise flight.FlightServerError(f"no such action: {action.type}")

    def _newer(self, question: TableRequest) -> FrameTable | None:
        """Return a table that is newer than the worker's; None if there is none within 5 s."""

        def is_newer() -> bool:
            table = self._tables.get(question.name)
            return table is not None and table.version > question.version

        with self._changed:
            return self._tables[question.name] if self._changed.wait_for(is_newer, _WAIT_S) else None

    def _publish(self, table: FrameTable) -> None:
        """Store a table, wake the calls that wait for it, and delete the attempts that it makes obsolete."""
        with self._changed:
            self._tables[table.name] = table
            self._changed.notify_all()
        self._folder.delete_unlisted(table)


class _OnlyWithToken(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Middleware that rejects calls without the token."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()

    def start_call(self, info: Any, headers: Any) -> None:
        """Check the call's token. Raises FlightUnauthenticatedError for a wrong one."""
        offered = "\n".join(headers.get("authorization", ()))  # a repeated header never matches
        if not hmac.compare_digest(offered.encode(errors="surrogateescape"), self._expected):
            raise flight.FlightUnauthenticatedError("this stage accepts only requests with the token of its run")


def _write(file: BinaryIO, reader: Any) -> tuple[StagedShard, ...]:
    """Write record batches as they arrive, and return the shards that successive batches form."""
    shards: list[StagedShard] = []
    count = rows = size = number = 0
    is_whole = False
    with pa.ipc.new_file(file, reader.schema) as writer:
        for chunk in reader:
            batch, is_whole = chunk.data, chunk.app_metadata is not None
            if batch is None or not batch.num_rows:
                continue
            writer.write_batch(batch)
            count, rows, size = count + 1, rows + batch.num_rows, size + batch.nbytes
            number += 1
            if size >= SHARD_BYTES:
                shards.append(StagedShard(number - count, count, rows, size))
                count = rows = size = 0
    if not is_whole:
        raise ValueError("the partition was not written completely")
    if count:
        shards.append(StagedShard(number - count, count, rows, size))
    return tuple(shards)


class StageEndpoint:
    """Server that receives files on its own threads until the process ends."""

    def __init__(self, listening: socket.socket, context: ssl.SSLContext, token: str, folder: StageFolder) -> None:
        self._listening, self._context, self._token, self._folder = listening, context, token.encode(), folder
        self._thread: threading.Thread | None = None
        self._end: Callable[[], object] = lambda: None
        self.port: int = listening.getsockname()[1]

    def serve(self) -> None:
        """Start to accept connections, on a thread."""
        begun: Future[Callable[[], object]] = Future()
        thread = threading.Thread(
            target=lambda: asyncio.run(self._accept(begun)), name="hopsml-stage-door", daemon=True
        )
        thread.start()
        self._thread = thread
        self._end = begun.result()

    def close(self) -> None:
        """Stop accepting connections, and wait for the accepting thread."""
        with contextlib.suppress(RuntimeError):  # closed already
            self._end()
        if self._thread is not None:
            self._thread.join()  # the acceptor closes the listening socket

    async def _accept(self, begun: Future[Callable[[], object]]) -> None:
        """Run the acceptor until ``close``; ``begun`` receives the function that ends it."""
        acceptor = Acceptor(refuse=log_once_per_kind(log), in_thread=self._let_in)
        limits = acceptor.limits
        most = min(limits.pending, _MOST_PENDING)
        acceptor.limits = ConnectionLimits(most, most * 3 // 4, limits.descriptors)
        acceptor.adopt(self._listening)
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        begun.set_result(lambda: loop.call_soon_threadsafe(ended.set))
        await ended.wait()
        acceptor.close()

    def _let_in(self, pending: Pending) -> None:
        """Serve one connection, and release its slot of pending connections."""
        try:
            self._receive(pending)
        finally:
            pending.release()

    def _receive(self, pending: Pending) -> None:
        """Authenticate a connection, receive one file, and send the reply."""
        plain = pending.connection
        with contextlib.suppress(OSError, EOFError), plain:
            plain.settimeout(_HEAD_S)
            with self._context.wrap_socket(plain, server_side=True) as connection, connection.makefile("rb") as pieces:
                if not hmac.compare_digest(_text(pieces), self._token):
                    return
                pending.release()
                name = _text(pieces).decode(errors="replace")
                connection.settimeout(None)
                for option, value in ((socket.TCP_KEEPIDLE, _SILENCE_S), (socket.TCP_KEEPINTVL, _SILENCE_S // 4)):
                    connection.setsockopt(socket.IPPROTO_TCP, option, value)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                problem = self._take(name, pieces).encode()[:_MOST_HEAD]
                connection.sendall(_SHORT.pack(len(problem)) + problem)

    def _take(self, name: str, pieces: BinaryIO) -> str:
        """Store a file; return an error message, empty if it is stored. Raises EOFError if the connection breaks."""
        coming = _Pieces(pieces)
        try:
            with self._folder.open_for_writing(name) as file:
                for piece in coming:
                    while piece:
                        piece = piece[file.write(piece) :]
        except (OSError, ValueError) as error:
            for _ in coming:  # the client reads the reply only after it has sent everything
                pass
            return str(getattr(error, "strerror", None) or error)
        return ""


class _Pieces:
    """Iterator over the received pieces until the length of 0.

    It stays exhausted. Raises EOFError if the connection breaks, or a length is negative.
    """

    def __init__(self, source: BinaryIO) -> None:
        self._source, self._left, self._is_over = source, 0, False
        self._buffer = memoryview(bytearray(_PIECE))

    def __iter__(self) -> _Pieces:
        return self

    def __next__(self) -> memoryview:
        """Return the next piece; it is valid until the following call."""
        if not self._left and not self._is_over:
            self._left = _LONG.unpack(_exactly(self._source, _LONG.size))[0]
            if self._left < 0:
                raise EOFError
            self._is_over = not self._left
        if self._is_over:
            raise StopIteration
        got = self._source.readinto(self._buffer[: min(self._left, _PIECE)])  # type: ignore[attr-defined]
        if not got:
            raise EOFError
        self._left -= got
        return self._buffer[:got]


def _text(pieces: BinaryIO) -> bytes:
    """Read a byte string preceded by its length in two bytes. Raises EOFError if it is too long or incomplete."""
    size = _SHORT.unpack(_exactly(pieces, _SHORT.size))[0]
    if size > _MOST_HEAD:
        raise EOFError
    return _exactly(pieces, size)


def _exactly(pieces: BinaryIO, size: int) -> bytes:
    """Read ``size`` bytes. Raises EOFError if the connection ends before."""
    found = pieces.read(size)
    if len(found) < size:
        raise EOFError
    return found
