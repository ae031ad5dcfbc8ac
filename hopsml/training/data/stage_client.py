"""Client of a stage (``stage.py``), used by Spark's tasks, workers and the driver; every call has a deadline."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from hopsml.training.data.frame_log import FrameTable, StageAddress, StagedShard, decode_shards, decode_table

if TYPE_CHECKING:
    import pyarrow as pa

CERTIFIED = "hopsml-stage"  # name in the stage's certificate
PUBLISH, TABLE = "publish", "table"  # Flight actions
WHOLE = b"whole"  # metadata that mark the end of a complete stream
_ANSWER_S = 15.0  # for short requests; a request for a table takes up to five seconds
_FETCH_S = 120.0  # for a shard
_PUT_S = 24 * 3600.0  # for a partition: Spark may compute it all that time
_first_in = 0  # pid of the process that made the first connection


class Fetch(msgspec.Struct, frozen=True):
    """Request for successive record batches of an attempt."""

    file: str  # path in the stage's folder
    first: int
    count: int
    rows: int = 0  # rows of the first batch to return, and no other batches; 0: all batches


class TableQuestion(msgspec.Struct, frozen=True):
    """Request for a DataFrame's table that is newer than ``version``."""

    name: str
    version: int


decode_fetch = msgspec.msgpack.Decoder(Fetch).decode
decode_question = msgspec.msgpack.Decoder(TableQuestion).decode


def is_cut_off() -> bool:
    """Return True if this process was forked from one with connections.

    gRPC's threads do not exist in it, so that calls would hang.
    """
    return _first_in not in (0, os.getpid())


class StageClient:
    """Connection to one stage; failures raise pyarrow's FlightError, which is not always an OSError."""

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
        """Return the options of a call: its deadline and the token."""
        import pyarrow.flight as flight

        return flight.FlightCallOptions(timeout=timeout_s, headers=self._headers)

    def put(
        self, name: str, partition: int, attempt: int, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
    ) -> tuple[StagedShard, ...]:
        """Send an attempt at a partition, and return its shards once the stage has stored all of it.

        Args:
            name: of the DataFrame.
            partition: number of the partition.
            attempt: Spark's identifier of the task attempt.
            schema: schema of the batches.
            batches: rows of the partition.
        """
        import pyarrow as pa
        import pyarrow.flight as flight

        descriptor = flight.FlightDescriptor.for_path(name, str(partition), str(attempt))
        writer, answers = self._client.do_put(descriptor, schema, self._options(_PUT_S))
        try:
            for batch in batches:
                writer.write_batch(batch)
            writer.write_metadata(WHOLE)  # a broken stream is otherwise indistinguishable from a complete one
            writer.done_writing()
            answer = answers.read()
        except (OSError, pa.ArrowException):
            writer.close()  # raises the stage's own error
            raise
        except BaseException:
            with contextlib.suppress(OSError, pa.ArrowException):
                writer.close()
            raise
        writer.close()
        return decode_shards(answer.to_pybytes())

    def fetch(self, file: str, shard: StagedShard, rows: int = 0) -> pa.Table:
        """Return the rows of a shard of a file in the stage's folder.

        Args:
            file: path in the stage's folder.
            shard: the shard.
            rows: only the first so many rows of the shard's first batch; 0: all rows.
        """
        import pyarrow.flight as flight

        wanted = Fetch(file, shard.first, shard.count, rows)
        ticket = flight.Ticket(msgspec.msgpack.encode(wanted))
        return self._client.do_get(ticket, self._options(_FETCH_S)).read_all()

    def publish(self, table: FrameTable) -> None:
        """Send the stage a new table, for its workers."""
        self._act(PUBLISH, table)

    def table(self, name: str, newer_than: int) -> FrameTable | None:
        """Return the newest table once there is a newer one.

        None if there is none in a few seconds: request it again.
        """
        answers = self._act(TABLE, TableQuestion(name, newer_than))
        return decode_table(answers[0]) if answers else None

    def close(self) -> None:
        """Close the connection to the stage."""
        self._client.close()

    def _act(self, kind: str, body: Any) -> list[bytes]:
        """Run a Flight action, and return its results."""
        import pyarrow.flight as flight

        action = flight.Action(kind, msgspec.msgpack.encode(body))
        return [answer.body.to_pybytes() for answer in self._client.do_action(action, self._options(_ANSWER_S))]
