"""Stage: a process on an agent's host that stores the rows sent by Spark's tasks, and serves them to workers.

An Arrow Flight server with the run's own token and a certificate of its own, which clients show as well: gRPC reads a
request whole, however large, before anybody can look at its token. An attempt at a partition is one Arrow file:
workers on the same machine map it, others fetch record batches of it. Which attempts count is not known here: the driver
publishes a table of them, for which workers may wait.
"""

from __future__ import annotations

import hmac
import resource
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.flight as flight

from hopsml.cluster.agent import network
from hopsml.cluster.shared.tls import make_key_pair, server_context
from hopsml.cluster.worker.sidecar import SidecarSeat, Tell
from hopsml.training.data.frame_log import FrameTable, StageAddress, StagedShard, decode_table, file_of
from hopsml.training.data.stage_client import CERTIFIED, PUBLISH, TABLE, TableQuestion, decode_fetch, decode_question
from hopsml.training.data.stage_endpoint import StageEndpoint
from hopsml.training.data.stage_folder import StageFolder

SHARD_BYTES = 16 << 20  # a shard has at least so many bytes, if the partition has them
_TRIES = 10  # number of ports that are tried
_WAIT_S = 5.0  # longest wait for a table; the worker then requests it again
_Server = TypeVar("_Server")


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
            with self._folder.keeping(file_of(name, partition, attempt)) as file:
                shards = _write(file, reader)
        except (OSError, ValueError) as error:
            raise flight.FlightServerError(str(getattr(error, "strerror", None) or error)) from error
        writer.write(msgspec.msgpack.encode(shards))

    def do_get(self, context: Any, ticket: Any) -> Any:
        """Return the record batches of one attempt that a ``Fetch`` ticket selects."""
        wanted = decode_fetch(ticket.ticket)
        try:
            file = pa.ipc.open_file(pa.memory_map(str(self._folder.path_of(wanted.file))))
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

    def _newer(self, question: TableQuestion) -> FrameTable | None:
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
        self._folder.keep_only(table)


class _OnlyWithToken(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Middleware that rejects calls without the token."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()

    def start_call(self, info: Any, headers: Any) -> None:
        """Check the call's token. Raises FlightUnauthenticatedError for a wrong one."""
        offered = "\n".join(headers.get("authorization", ()))  # a repeated header never matches
        if not hmac.compare_digest(offered.encode(errors="surrogateescape"), self._expected):
            raise flight.FlightUnauthenticatedError("this stage gives and takes rows with its run's token alone")


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
        raise ValueError("the partition was not brought to its end")
    if count:
        shards.append(StagedShard(number - count, count, rows, size))
    return tuple(shards)
