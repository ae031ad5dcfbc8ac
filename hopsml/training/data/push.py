"""Spark's rows brought to a stage by Python tasks, by ``DataFrame.mapInArrow``: for columns of any type."""

from __future__ import annotations

import base64
import itertools
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from hopsml.training.data.frame_log import StageAddress, StagedPartition, decode_addresses, decode_shards
from hopsml.training.data.stage_client import StageClient

if TYPE_CHECKING:
    import pyarrow as pa

RESULT = "partition long, attempt long, stage string, shards binary"  # the schema of what a task answers
STAGES = "hopsml.stages"  # local property of a job: which ones there are by now; the plan of all jobs stays the same


class PythonPush:
    """The plan of one DataFrame, and its jobs. What goes wrong is py4j's."""

    def __init__(self, name: str, frame: Any) -> None:
        self._rows = frame.mapInArrow(pusher(name), RESULT).rdd

    @property
    def partitions(self) -> int:
        """Of the plan; what needs a shuffle is computed up to it."""
        return int(self._rows.getNumPartitions())

    def push(self, name: str, stages: Sequence[StageAddress], partitions: Sequence[int]) -> list[StagedPartition]:
        """Bring these partitions to these stages, as jobs of the calling thread's group."""
        context = self._rows.context
        context.setLocalProperty(STAGES, property_of(tuple(stages)))
        return [staged(row) for row in context.runJob(self._rows, list, list(partitions))]


PushBatches = Callable[["Iterator[pa.RecordBatch]"], "Iterator[pa.RecordBatch]"]


def pusher(name: str) -> PushBatches:
    """What each task calls with its record batches."""

    def push(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from hopsml.training.data import push as here

        yield here.push_partition(name, batches)

    return push


def property_of(stages: tuple[StageAddress, ...]) -> str:
    """The local property ``STAGES``."""
    return base64.b64encode(msgspec.msgpack.encode(stages)).decode()


def staged(row: Any) -> StagedPartition:
    """What a row of the result says."""
    shards = decode_shards(bytes(row.shards))
    return StagedPartition(row.partition, row.attempt, row.stage, shards)


def push_partition(name: str, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch:
    """Bring all batches of this task to one stage; the answer says to which, and what lies there."""
    import pyarrow as pa
    from pyspark import TaskContext

    task = TaskContext.get()
    assert task is not None
    data = base64.b64decode(task.getLocalProperty(STAGES) or "")
    stages = decode_addresses(data)
    partition, attempt = task.partitionId(), task.taskAttemptId()
    client = StageClient(choose(stages, socket.gethostname(), partition, task.attemptNumber()))
    try:
        first = next(batches, None)
        schema = first.schema if first is not None else pa.schema([])
        all_of_them = itertools.chain([] if first is None else [first], batches)
        shards = client.put(name, partition, attempt, schema, all_of_them)
    finally:
        client.close()
    columns = [[partition], [attempt], [client.address.url], [msgspec.msgpack.encode(shards)]]
    names = ["partition", "attempt", "stage", "shards"]
    return pa.RecordBatch.from_arrays([pa.array(column) for column in columns], names)


def choose(stages: tuple[StageAddress, ...], hostname: str, partition: int, attempt: int) -> StageAddress:
    """One on this machine where there is any, in turn; after a failure another one, wherever that is."""
    near = [stage for stage in stages if stage.hostname == hostname]
    among = near if near and not attempt else stages
    return among[(partition + attempt) % len(among)]
