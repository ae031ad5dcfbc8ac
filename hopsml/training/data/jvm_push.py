"""Transfer of Spark's rows to stages by its JVM, without Python, for plain types and arrays of numbers.

The JVM side is ``native/spark_push``.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hopsml.training.data.frame_log import StageAddress, StagedPartition, StagedShard

_LOOK_MS = 500  # longest wait for results before the job's state is checked again
JAR = Path(__file__).parent / "lib" / "hopsml-spark-push.jar"


class JvmPush:
    """Plan of one DataFrame and its transfer jobs in the JVM; failures raise py4j's errors."""

    def __init__(self, frame: Any) -> None:
        """Create the plan of a DataFrame in the JVM.

        Raises py4j's error for a schema that is not supported, or an incompatible Spark version.
        """
        self._rows = classes(frame).PushRows(frame._jdf.queryExecution())

    @property
    def partitions(self) -> int:
        """Number of partitions of the plan; reading it computes the query up to its last shuffle."""
        return int(self._rows.partitions())

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
        follow(self._rows.push(name, lines(stages), ",".join(map(str, partitions))), staged, arrived)


def classes(frame: Any) -> Any:
    """Return the classes of ``native/spark_push`` in the JVM of a DataFrame; its executors fetch them as well."""
    session = frame.sparkSession
    session.sql(f"ADD JAR '{JAR}'")
    return session._jvm.io.hopsml


def follow(
    job: Any, read: Callable[[str], StagedPartition], arrived: Callable[[list[StagedPartition]], object]
) -> None:
    """Wait for a ``PushJob``, and pass partitions to ``arrived`` as they are stored.

    Args:
        job: the job, in the JVM.
        read: parses a task's result.
        arrived: called with the partitions that new results report.
    """
    while not job.isOver():
        if answers := job.next(_LOOK_MS):
            arrived([read(answer) for answer in answers])
    job.finish()


def lines(stages: Sequence[StageAddress]) -> str:
    """Format the addresses of stages as lines, which ``Stage.parse`` in the JVM reads."""
    return "\n".join("\t".join(_words(one)) for one in stages)


def _words(one: StageAddress) -> list[str]:
    """Return the fields of a stage's address, with the certificate in Base64."""
    certificate = base64.b64encode(one.certificate.encode()).decode()
    return [one.url, one.host, str(one.door), one.token, certificate, one.hostname, one.folder]


def staged(answer: str) -> StagedPartition:
    """Parse the result of a ``PushTask``."""
    partition, attempt, stage, *batches = answer.split(" ")
    sizes = [tuple(map(int, batch.split(":"))) for batch in batches]
    shards = tuple(StagedShard(number, 1, rows, size) for number, (rows, size) in enumerate(sizes))
    return StagedPartition(int(partition), int(attempt), stage, shards)
