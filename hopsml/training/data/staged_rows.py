"""Client of a stage (``stage.py``), and source of a DataFrame's rows as shards at the stages of its run's agents.

Spark's tasks, workers and the driver are clients; every call has a deadline.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import os
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import msgspec

from hopsml.cluster.worker import context
from hopsml.core import traffic
from hopsml.core.decoding import checked
from hopsml.errors import ArgumentError, RunError, StorageError
from hopsml.training.data import columns as arrow_columns
from hopsml.training.data.frame_log import (
    FrameTable,
    StageAddress,
    StagedPartition,
    StagedShard,
    decode_address,
    decode_shards,
    decode_table,
)
from hopsml.training.data.shard_order import Wave, first_nonempty_shard

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray


CERTIFIED = "hopsml-stage"  # name in the stage's certificate
PUBLISH, TABLE = "publish", "table"  # Flight actions
WHOLE = b"whole"  # metadata that mark the end of a complete stream
_ANSWER_S = 15.0  # for short requests; a request for a table takes up to five seconds
_FETCH_S = 120.0  # for a shard
_PUT_S = 24 * 3600.0  # for a partition: Spark may compute it all that time
_first_in = 0  # pid of the process that made the first connection
_PATIENCE_S = 300.0  # longest wait for an unavailable shard until Spark has computed it again
_MAPPED = 256  # most files that stay mapped, one per partition
_PAUSE_S = 0.05  # between two attempts to reach this agent's stage, which starts along with the worker
_SHARDS = 1 << 20  # most shards of a partition
# fillna ignores other types, and values within lists.
_NULLS = (
    "replace nulls: df.fillna(...) for numbers, texts and Booleans, F.coalesce(column, F.lit(...)) for other types, "
    "F.transform(...) within lists; or drop such rows by df.where(...)"
)


class FetchRequest(msgspec.Struct, frozen=True):
    """Request for successive record batches of an attempt."""

    file: str  # path in the stage's folder
    first: int
    count: int
    rows: int = 0  # rows of the first batch to return, and no other batches; 0: all batches


class TableRequest(msgspec.Struct, frozen=True):
    """Request for a DataFrame's table that is newer than ``version``."""

    name: str
    version: int


decode_fetch = checked(msgspec.msgpack.Decoder(FetchRequest).decode)
decode_question = checked(msgspec.msgpack.Decoder(TableRequest).decode)


def was_forked_after_connecting() -> bool:
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
            generic_options=[("grpc.enable_http_proxy", 0)],  # stages are hosts of the cluster
        )

    def _options(self, timeout_s: float) -> Any:
        """Return the options of a call: its deadline and the token."""
        import pyarrow.flight as flight

        return flight.FlightCallOptions(timeout=timeout_s, headers=self._headers)

    def put(
        self, name: str, partition: int, attempt: int, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
    ) -> tuple[StagedShard, ...]:
        """Send an attempt at a partition, and return its shards once the stage has stored all of it."""
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

        wanted = FetchRequest(file, shard.first, shard.count, rows)
        ticket = flight.Ticket(msgspec.msgpack.encode(wanted))
        return self._client.do_get(ticket, self._options(_FETCH_S)).read_all()

    def publish(self, table: FrameTable) -> None:
        """Send the stage a new table, for its workers."""
        self._act(PUBLISH, table)

    def wait_for_table(self, name: str, newer_than: int) -> FrameTable | None:
        """Return the newest table once there is a newer one.

        None if there is none in a few seconds: request it again.
        """
        answers = self._act(TABLE, TableRequest(name, newer_than))
        return decode_table(answers[0]) if answers else None

    def close(self) -> None:
        """Close the connection to the stage."""
        self._client.close()

    def _act(self, kind: str, body: Any) -> list[bytes]:
        """Run a Flight action, and return its results."""
        import pyarrow.flight as flight

        action = flight.Action(kind, msgspec.msgpack.encode(body))
        return [answer.body.to_pybytes() for answer in self._client.do_action(action, self._options(_ANSWER_S))]


class StagedRows:
    """Source of shards at stages; it is created on the driver, and reads only in workers."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._found: Path | None = None  # in a worker's subprocess: the worker's file with the stage's address
        self._begin()

    def _begin(self) -> None:
        """Initialize the state that is not pickled."""
        self._lock, self._asking = threading.Lock(), threading.Lock()
        self._table: FrameTable | None = None
        self._own: StageClient | None = None
        self._clients: dict[str, StageClient] = {}
        self._files: OrderedDict[Path, Any] = OrderedDict()
        self._first: arrow_columns.Forms | None = None  # reference type and shape of a row

    def __repr__(self) -> str:
        return f"DataFrame {self._name!r}"  # in run records, which must not differ from run to run

    def __getstate__(self) -> tuple[str, Path | None]:
        # True only for a process that this one spawns, on the same machine.
        is_sent = get_spawning_popen() is not None
        return self._name, self._address_file() if is_sent else None

    def __setstate__(self, state: tuple[str, Path | None]) -> None:
        self._name, self._found = state
        self._begin()

    @property
    def arriving(self) -> StagedRows:
        """Shards of the data, the first of which are known before Spark has computed the last."""
        return self

    @property
    def identity(self) -> dict[str, int]:
        """Empty: within a run the name identifies the rows."""
        return {}

    @property
    def is_complete(self) -> bool:
        """True if all rows are known to be stored."""
        return self._table is not None and self._table.is_whole

    def wave(self, number: int) -> Wave:
        """Return the wave with this number; waits for it. Raises RunError outside of the run."""
        table = self._known(lambda table: number < len(table.waves))
        return Wave(_rows(table, table.waves[number]), table.is_whole and number == len(table.waves) - 1)

    def all_shards(self) -> dict[int, int]:
        """Return all shards, ordered by partition; waits for them. Raises RunError outside of the run."""
        table = self._known(lambda table: table.is_whole)
        return _rows(table, range(len(table.partitions)))

    @property
    def shard_sizes(self) -> tuple[int, ...]:
        """Number of rows of each shard; waits until Spark has computed all. Raises RunError outside of the run."""
        return tuple(self.all_shards().values())

    @property
    def row_bytes(self) -> float:
        """Average memory that a row of the first non-empty wave takes, in bytes."""
        for number in itertools.count():
            wave = self.wave(number)
            if rows := sum(wave.shards.values()):
                table = self._known(lambda table: True)
                return sum(_place(table, shard)[1].size for shard in wave.shards) / rows
            if wave.is_last:
                return 0.0
        raise AssertionError("unreachable")

    def read(self, shard: int) -> dict[str, NDArray[Any]]:
        """Return one shard's columns, which are read-only.

        Waits for a shard that was lost with an agent, until Spark has computed it again.

        Raises:
            ArgumentError: a column has no array, or its rows have another shape than the first ones; the message names
                the column.
            StorageError: the shard is unavailable for 300 s.
        """
        found, place = self._arrays(shard)
        # The reference rows are the same for all workers, as waves are; one row is fetched quickly.
        if self._first is None:
            first = first_nonempty_shard(self)
            assert first is not None
            row, where = (found, place) if first == shard else self._arrays(first, rows=1)
            self._first = arrow_columns.row_forms(row, where.rstrip(","))
        arrow_columns.check_row_forms(found, self._first, place)
        return found

    def _arrays(self, shard: int, rows: int = 0) -> tuple[dict[str, NDArray[Any]], str]:
        """Return the columns of a shard, or of its first ``rows`` only; and their origin, for messages."""
        table, deadline = self._known(lambda table: True), time.monotonic() + _PATIENCE_S
        while True:
            one, part = _place(table, shard)
            try:
                found = self._read(table.stages.get(one.stage), one, part, rows)
                break
            except Exception as error:
                if not _is_passing(error):
                    raise
                if time.monotonic() > deadline:
                    raise StorageError(
                        f"partition {one.partition} of data={self._name!r} cannot be read from {one.stage}: {error}",
                        one.stage,
                    ) from error
                table = self._newer(table)
        place = f"data={self._name!r}, partition {one.partition},"
        return arrow_columns.table_to_arrays(found, {}, place, nulls=_NULLS), place

    def _read(self, stage: StageAddress | None, one: StagedPartition, shard: StagedShard, rows: int) -> pa.Table:
        """Read a shard's record batches from a mapped file on this machine, or from the stage."""
        import pyarrow as pa

        if stage is None:
            raise FileNotFoundError(f"the stage at {one.stage} has ended")
        if stage.hostname == socket.gethostname() and (
            file := self._mapped(Path(stage.folder) / one.file_path(self._name))
        ):
            if rows:
                return pa.Table.from_batches([file.get_batch(shard.first).slice(0, rows)])
            return pa.Table.from_batches(file.get_batch(shard.first + number) for number in range(shard.count))
        found = self._client(stage).fetch(one.file_path(self._name), shard, rows)
        traffic.count(traffic.FEED, received=found.nbytes)
        return found

    def _mapped(self, path: Path) -> Any:
        """Return the file, memory-mapped; None if it does not exist.

        It stays mapped, because mapping its pages again in each epoch costs more than reading them.
        """
        import pyarrow as pa

        with self._lock:
            if path not in self._files:
                if not path.exists():
                    return None
                while len(self._files) >= _MAPPED:
                    self._files.popitem(last=False)
                self._files[path] = pa.ipc.open_file(pa.memory_map(str(path)))
            self._files.move_to_end(path)
            return self._files[path]

    def _client(self, stage: StageAddress) -> StageClient:
        """Return a connection to a stage, which is reused."""
        with self._lock:
            if stage.url not in self._clients:
                self._clients[stage.url] = StageClient(stage)
            return self._clients[stage.url]

    # ------------------------------------------------------------------------------------------ the table

    def _known(self, suffices: Callable[[FrameTable], bool]) -> FrameTable:
        """Return a table that satisfies ``suffices``.

        Waits until there is one. Raises ArgumentError in a process that cannot request tables.
        """
        if was_forked_after_connecting():
            raise ArgumentError(
                f"the rows of data={self._name!r} cannot be read in a process that was forked from a worker; give "
                "the DataLoader multiprocessing_context='forkserver' (or 'spawn') and a collate_fn that can be "
                "imported"
            )
        known = self._table
        while known is None or not suffices(known):
            known = self._newer(known)
        return known

    @overload
    def _newer(self, old: FrameTable) -> FrameTable: ...

    @overload
    def _newer(self, old: FrameTable | None) -> FrameTable | None: ...

    def _newer(self, old: FrameTable | None) -> FrameTable | None:
        """Return the newest table; after a few seconds the same one if there is no newer one."""
        with self._asking:
            if self._table is old:
                self._ask(0 if old is None else old.version)
            return self._table

    def _ask(self, version: int) -> None:
        """Wait a few seconds for a table with a newer version."""
        try:
            own = self._own = self._own or StageClient(self._address())
            table = own.wait_for_table(self._name, version)
        except Exception as error:
            if not _is_passing(error):
                raise
            self._own = None  # the stage may have been replaced by another one
            time.sleep(_PAUSE_S)
            return
        if table is not None:
            self._table = table

    def _address_file(self) -> Path | None:
        """Return the file with the stage's address; None outside of a worker."""
        here = context.current()
        return self._found if here is None else here.sidecar

    def _address(self) -> StageAddress:
        """Return the address of this agent's stage. Raises RunError outside of the run."""
        if (file := self._address_file()) is None:
            raise RunError(
                f"the rows of data={self._name!r} can be read only in the training function that received them, "
                "while its run is running"
            )
        return decode_address(file.read_bytes())


def _rows(table: FrameTable, partitions: Iterable[int]) -> dict[int, int]:
    """Return the number of rows of each shard of the partitions; shards are numbered by partition and index."""
    wanted = set(partitions)
    return {
        one.partition * _SHARDS + number: shard.rows
        for one in table.partitions
        if one.partition in wanted
        for number, shard in enumerate(one.shards)
    }


def _place(table: FrameTable, shard: int) -> tuple[StagedPartition, StagedShard]:
    """Return the partition and the shard with this number."""
    partition, number = divmod(shard, _SHARDS)
    one = table.partitions[bisect.bisect_left(table.partitions, partition, key=lambda one: one.partition)]
    return one, one.shards[number]


def _is_passing(error: Exception) -> bool:
    """Return True if the error means that a stage or its rows are lost, which Spark will replace."""
    import pyarrow as pa
    import pyarrow.flight as flight

    return isinstance(error, (OSError, flight.FlightError, pa.ArrowInvalid))
