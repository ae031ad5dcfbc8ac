"""The stage: a process beside an agent's workers that keeps the rows which Spark's tasks bring, and gives them to workers.

An Arrow Flight server with the run's own token and a certificate of its own. An attempt at a partition is one Arrow file,
whole or not there: workers on the same machine map it, others fetch record batches of it. Which attempts count is not known
here: the driver publishes a table of them, for which workers may wait.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.flight as flight

from hopsml.cluster.agent import network
from hopsml.cluster.shared.tls import make_key_pair
from hopsml.cluster.worker.sidecar import SidecarSeat, Tell
from hopsml.training.data.frame_log import FrameTable, StageAddress, StagedShard, file_of
from hopsml.training.data.stage_client import CERTIFIED, PUBLISH, TABLE, Fetch, TableQuestion

SHARD_BYTES = 16 << 20  # of which a worker reads at least so much as a whole, where the partition has it
_TRIES = 10  # of ports
_WAIT_S = 5.0  # at most, for a table: whoever waits asks again


def serve(seat: SidecarSeat, tell: Tell) -> None:
    """Open the stage, tell the driver and this agent's workers where it is, and serve until the process ends."""
    certificate, key = make_key_pair(CERTIFIED)
    token = secrets.token_urlsafe(32)
    host = f"[{seat.host}]" if ":" in seat.host else seat.host
    stage = _opened(
        seat, lambda port: StageServer(Path(seat.folder), token, f"grpc+tls://{host}:{port}", certificate, key)
    )
    url = f"grpc+tls://{host}:{stage.port}"
    address = StageAddress(url, certificate.decode(), token, socket.gethostname(), seat.folder)
    data = msgspec.msgpack.encode(address)
    seat.write_address(data)
    tell(data)
    stage.serve()


def _opened(seat: SidecarSeat, open_at: Callable[[int], StageServer]) -> StageServer:
    """The stage at a free port. Flight's server shares none with who holds it, so another may be quicker."""
    for tries_left in reversed(range(_TRIES)):
        port = 0
        if seat.port_range is not None:
            with network.hold_port(seat.host, seat.port_range) as held:
                port = held.port
        try:
            return open_at(port)
        except pa.ArrowException:
            if not tries_left:
                raise
    raise AssertionError("unreachable")


class StageServer(flight.FlightServerBase):  # type: ignore[misc]
    """Keeps files below ``folder``, and the newest table of each DataFrame."""

    def __init__(self, folder: Path, token: str, url: str, certificate: bytes, key: bytes) -> None:
        super().__init__(url, tls_certificates=[(certificate, key)], middleware={"token": _OnlyWithToken(token)})
        self._folder = folder
        self._tables: dict[str, FrameTable] = {}
        self._changed = threading.Condition()

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Keep one attempt at a partition; the answer, when all is there, are its shards."""
        name, partition, attempt = (part.decode() for part in descriptor.path)
        path = self._path(file_of(name, int(partition), int(attempt)))
        path.parent.mkdir(mode=0o700, exist_ok=True)
        part = path.with_suffix(".part")
        try:
            shards = _write(part, reader)
            part.rename(path)
        except OSError as error:
            raise flight.FlightServerError(
                f"{socket.gethostname()} cannot keep the rows of data={name!r} in {path.parent}: {error.strerror or error}"
            ) from error
        finally:
            with contextlib.suppress(OSError):
                part.unlink()
        writer.write(msgspec.msgpack.encode(shards))

    def do_get(self, context: Any, ticket: Any) -> Any:
        """Record batches of one attempt."""
        wanted = msgspec.msgpack.decode(ticket.ticket, type=Fetch)
        try:
            file = pa.ipc.open_file(pa.memory_map(str(self._path(wanted.file))))
        except OSError as error:
            raise flight.FlightServerError(f"{wanted.file} is not here: {error}") from error
        batches = (file.get_batch(number) for number in range(wanted.first, wanted.first + wanted.count))
        return flight.GeneratorStream(file.schema, batches)

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:
        """``publish`` a table, from the driver; give a worker the ``table`` once there is one newer than its own."""
        if action.type == PUBLISH:
            self._publish(msgspec.msgpack.decode(action.body, type=FrameTable))
        elif action.type == TABLE:
            question = msgspec.msgpack.decode(action.body, type=TableQuestion)
            if (table := self._newer(question)) is not None:
                yield msgspec.msgpack.encode(table)
        else:
            raise flight.FlightServerError(f"no such action: {action.type}")

    def _path(self, file: str) -> Path:
        """Of a file in the folder, and nowhere else."""
        path = (self._folder / file).resolve()
        if path.parent.parent != self._folder.resolve():
            raise flight.FlightServerError(f"{file!r} is none of this stage's files")
        return path

    def _newer(self, question: TableQuestion) -> FrameTable | None:
        def is_newer() -> bool:
            table = self._tables.get(question.name)
            return table is not None and table.version > question.version

        with self._changed:
            return self._tables[question.name] if self._changed.wait_for(is_newer, _WAIT_S) else None

    def _publish(self, table: FrameTable) -> None:
        """Keep the table, and of the files only those that count and may still be asked for."""
        with self._changed:
            self._tables[table.name] = table
            self._changed.notify_all()
        counting = {self._folder / one.file(table.name) for one in table.partitions}
        for path in self._folder.glob(file_of(table.name, "*", "*")):
            if path not in counting:
                path.unlink(missing_ok=True)


class _OnlyWithToken(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Turns away whoever does not show the token."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()

    def start_call(self, info: Any, headers: Any) -> None:
        offered = "\n".join(headers.get("authorization", ()))  # two of them are none
        if not hmac.compare_digest(offered.encode(errors="surrogateescape"), self._expected):
            raise flight.FlightUnauthenticatedError("this stage gives and takes rows with its run's token alone")


def _write(path: Path, reader: Any) -> tuple[StagedShard, ...]:
    """Write record batches as they come; successive ones make a shard."""
    shards: list[StagedShard] = []
    count = rows = size = number = 0
    is_whole = False
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file, pa.ipc.new_file(file, reader.schema) as writer:
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
        raise flight.FlightServerError("the partition was not brought to its end")
    if count:
        shards.append(StagedShard(number - count, count, rows, size))
    return tuple(shards)
