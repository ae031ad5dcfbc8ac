"""Transfer of Spark's rows to stages by Python tasks with ``DataFrame.mapInArrow``, for columns of any type."""

from __future__ import annotations

import base64
import itertools
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from hopsml.training.data import jvm_push
from hopsml.training.data.frame_log import StageAddress, StagedPartition, decode_addresses, decode_partition
from hopsml.training.data.stage_client import StageClient

if TYPE_CHECKING:
    import pyarrow as pa

RESULT = "answer string"  # schema of a task's result
STAGES = "hopsml.stages"  # local property of a job with the stages at its start, so that all jobs share one plan


class PythonPush:
    """Plan of one DataFrame and its transfer jobs in Python tasks; failures raise py4j's errors."""

    def __init__(self, name: str, frame: Any) -> None:
        answers = frame.mapInArrow(pusher(name), RESULT)
        self._context = frame.sparkSession.sparkContext
        self._rows: Any = None  # without the JVM library, all results arrive at the end of the job
        self._answers = answers.rdd if not jvm_push.JAR.exists() else None
        if self._answers is None:
            self._rows = jvm_push.classes(frame).AnswerRows(answers._jdf.queryExecution())

    @property
    def partitions(self) -> int:
        """Number of partitions of the plan; reading it computes the query up to its last shuffle."""
        return int(self._rows.partitions() if self._answers is None else self._answers.getNumPartitions())

    def push(
        self,
        name: str,
        stages: Sequence[StageAddress],
        partitions: Sequence[int],
        arrived: Callable[[list[StagedPartition]], object],
    ) -> None:
        """Send these partitions to these stages, as a job of the calling thread's job group; waits for its end.

        Args:
            name: of the DataFrame.
            stages: where the partitions may be stored.
            partitions: numbers of the partitions.
            arrived: called with partitions as they are stored.
        """
        self._context.setLocalProperty(STAGES, property_of(tuple(stages)))
        if self._answers is None:
            jvm_push.follow(self._rows.push(",".join(map(str, partitions))), staged, arrived)
        else:
            rows = self._context.runJob(self._answers, list, list(partitions))
            arrived([staged(row.answer) for row in rows])


PushBatches = Callable[["Iterator[pa.RecordBatch]"], "Iterator[pa.RecordBatch]"]


def pusher(name: str) -> PushBatches:
    """Return the function that each task calls with its record batches, for ``mapInArrow``."""

    def push(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from hopsml.training.data import push as here

        yield here.push_partition(name, batches)

    return push


def property_of(stages: tuple[StageAddress, ...]) -> str:
    """Encode the stages as the value of the local property ``STAGES``."""
    return base64.b64encode(msgspec.msgpack.encode(stages)).decode()


def staged(answer: str) -> StagedPartition:
    """Decode the result of a task."""
    return decode_partition(base64.b64decode(answer))


def push_partition(name: str, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch:
    """Send all record batches of the current Spark task to one stage, and return the encoded ``StagedPartition``."""
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
    answer = msgspec.msgpack.encode(StagedPartition(partition, attempt, client.address.url, shards))
    return pa.RecordBatch.from_arrays([pa.array([base64.b64encode(answer).decode()])], ["answer"])


def choose(stages: tuple[StageAddress, ...], hostname: str, partition: int, attempt: int) -> StageAddress:
    """Return the stage for an attempt at a partition.

    The first attempt goes to a stage on the same machine if there is one, spread by partition number; a repeated
    attempt goes to any stage.

    Args:
        stages: the stages to choose from.
        hostname: of this machine.
        partition: number of the partition.
        attempt: number of previous attempts at the task.
    """
    near = [stage for stage in stages if stage.hostname == hostname]
    among = near if near and not attempt else stages
    return among[(partition + attempt) % len(among)]
