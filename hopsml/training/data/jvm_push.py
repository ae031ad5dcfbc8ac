"""Spark's rows brought by its JVM itself, without Python: ``native/spark_push``, for plain types and arrays of numbers."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hopsml.training.data.frame_log import StageAddress, StagedPartition, StagedShard

_LOOK_MS = 500  # between two looks whether the job is over
JAR = Path(__file__).parent / "lib" / "hopsml-spark-push.jar"


class JvmPush:
    """The plan of one DataFrame, and its jobs. What goes wrong is py4j's."""

    def __init__(self, frame: Any) -> None:
        """Raises py4j's error for a schema that it does not take, or a Spark whose classes are others."""
        self._rows = classes(frame).PushRows(frame._jdf.queryExecution())

    @property
    def partitions(self) -> int:
        """Of the plan; what needs a shuffle is computed up to it."""
        return int(self._rows.partitions())

    def push(
        self,
        name: str,
        stages: Sequence[StageAddress],
        partitions: Sequence[int],
        arrived: Callable[[list[StagedPartition]], object],
    ) -> None:
        """Bring these partitions to these stages, as a job of the calling thread's group; ``arrived``: some are there."""
        follow(self._rows.push(name, lines(stages), ",".join(map(str, partitions))), staged, arrived)


def classes(frame: Any) -> Any:
    """Those of ``native/spark_push``, in the JVM of a DataFrame and on its executors, which fetch them."""
    session = frame.sparkSession
    session.sql(f"ADD JAR '{JAR}'")
    return session._jvm.io.hopsml


def follow(
    job: Any, read: Callable[[str], StagedPartition], arrived: Callable[[list[StagedPartition]], object]
) -> None:
    """Until a ``PushJob`` is over; ``read``: what a task's answer says."""
    while not job.isOver():
        if answers := job.next(_LOOK_MS):
            arrived([read(answer) for answer in answers])
    job.finish()


def lines(stages: Sequence[StageAddress]) -> str:
    """As ``Stage.parse`` takes them."""
    return "\n".join("\t".join(_words(one)) for one in stages)


def _words(one: StageAddress) -> list[str]:
    certificate = base64.b64encode(one.certificate.encode()).decode()
    return [one.url, one.host, str(one.door), one.token, certificate, one.hostname, one.folder]


def staged(answer: str) -> StagedPartition:
    """What ``PushTask`` answers."""
    partition, attempt, stage, *batches = answer.split(" ")
    sizes = [tuple(map(int, batch.split(":"))) for batch in batches]
    shards = tuple(StagedShard(number, 1, rows, size) for number, (rows, size) in enumerate(sizes))
    return StagedPartition(int(partition), int(attempt), stage, shards)
