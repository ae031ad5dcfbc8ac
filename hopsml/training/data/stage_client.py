"""Calls of a stage (``stage.py``), each with a deadline, from Spark's tasks, from workers and from the driver."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from hopsml.training.data.frame_log import FrameTable, StageAddress, StagedShard, decode_shards, decode_table

if TYPE_CHECKING:
    import pyarrow as pa

CERTIFIED = "hopsml-stage"  # the name in its certificate
PUBLISH, TABLE = "publish", "table"  # actions
WHOLE = b"whole"  # behind the last record batch
_ANSWER_S = 15.0  # for a small question; a stage answers one for a table after five seconds at most
_FETCH_S = 120.0  # for a shard
_PUT_S = 24 * 3600.0  # for a partition: as long as Spark takes to compute it
_first_in = 0  # pid of the process that has made the first connection


class Fetch(msgspec.Struct, frozen=True):
    """Which record batches of which attempt."""

    file: str  # in the stage's folder
    first: int
    count: int
    rows: int = 0  # of the first one, and no others; 0: all


class TableQuestion(msgspec.Struct, frozen=True):
    """The table of a DataFrame that is newer than this version."""

    name: str
    version: int


decode_fetch = msgspec.msgpack.Decoder(Fetch).decode
decode_question = msgspec.msgpack.Decoder(TableQuestion).decode


def is_cut_off() -> bool:
    """Whether this process was forked from one with connections: gRPC's threads are there, and nobody answers calls here."""
    return _first_in not in (0, os.getpid())


class StageClient:
    """A connection to one stage. What goes wrong is pyarrow's FlightError, an OSError among them or not."""

    def __init__(self, address: StageAddress) -> None:
        import pyarrow.flight as flight

        global _first_in
        _first_in = _first_in or os.getpid()
        self.address = address
        self._headers = [(b"authorization", f"Bearer {address.token}".encode())]
        self._client = flight.FlightClient(
            address.url,
            tls_root_certs=address.certificate,
            cert_chain=address.certificate,
            private_key=address.client_key,
            override_hostname=CERTIFIED,
        )

    def _options(self, timeout_s: float) -> Any:
        import pyarrow.flight as flight

        return flight.FlightCallOptions(timeout=timeout_s, headers=self._headers)

    def put(
        self, name: str, partition: int, attempt: int, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
    ) -> tuple[StagedShard, ...]:
        """Bring an attempt at a partition; returns its shards once all of it is kept."""
        import pyarrow as pa
        import pyarrow.flight as flight

        descriptor = flight.FlightDescriptor.for_path(name, str(partition), str(attempt))
        writer, answers = self._client.do_put(descriptor, schema, self._options(_PUT_S))
        try:
            for batch in batches:
                writer.write_batch(batch)
            writer.write_metadata(WHOLE)  # a stream that breaks off ends as one that is whole
            writer.done_writing()
            answer = answers.read()
        except (OSError, pa.ArrowException):
            writer.close()  # whose error is the stage's own word
            raise
        except BaseException:
            with contextlib.suppress(OSError, pa.ArrowException):
                writer.close()
            raise
        writer.close()
        return decode_shards(answer.to_pybytes())

    def fetch(self, file: str, shard: StagedShard, rows: int = 0) -> pa.Table:
        """A shard's rows, of a file in the stage's folder; the first ``rows`` of its first batch alone, or (0) all."""
        import pyarrow.flight as flight

        wanted = Fetch(file, shard.first, shard.count, rows)
        ticket = flight.Ticket(msgspec.msgpack.encode(wanted))
        return self._client.do_get(ticket, self._options(_FETCH_S)).read_all()

    def publish(self, table: FrameTable) -> None:
        """Let the stage's workers know where all rows are."""
        self._act(PUBLISH, table)

    def table(self, name: str, newer_than: int) -> FrameTable | None:
        """The newest table, once there is one that is newer; None when that takes long: ask again."""
        answers = self._act(TABLE, TableQuestion(name, newer_than))
        return decode_table(answers[0]) if answers else None

    def close(self) -> None:
        """End the connection."""
        self._client.close()

    def _act(self, kind: str, body: Any) -> list[bytes]:
        import pyarrow.flight as flight

        action = flight.Action(kind, msgspec.msgpack.encode(body))
        return [answer.body.to_pybytes() for answer in self._client.do_action(action, self._options(_ANSWER_S))]
