"""Transfer of a DataFrame's rows from Spark to stages: by the JVM for plain types, else by Python tasks.

The JVM side is ``native/spark_push``; Python tasks use ``DataFrame.mapInArrow`` and take columns of any type for which
there is an array.
"""

from __future__ import annotations

import base64
import itertools
import re
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from hopsml.core import extras
from hopsml.core.versions import PANDAS, check_installed
from hopsml.errors import ArgumentError
from hopsml.training.data.frame_log import (
    StageAddress,
    StagedPartition,
    StagedShard,
    decode_addresses,
    decode_partition,
)
from hopsml.training.data.staged_rows import StageClient

if TYPE_CHECKING:
    import pyarrow as pa


# Types that ``columns.table_to_arrays`` converts; all other types, also those of newer Spark versions, are rejected.
_WITH_ARRAY = re.compile(
    r"boolean|byte|short|integer|long|float|double|decimal\(.*\)|binary|date|timestamp|timestamp_ntz"
    r"|(string|char|varchar)\b.*|interval (day|hour|minute|second)( to (hour|minute|second))?"
)
_VECTOR, _MATRIX = "VectorUDT", "MatrixUDT"  # class names of Spark ML

Field = Mapping[str, Any]  # of a Spark schema, as JSON
_LOOK_MS = 500  # longest wait for results before the job's state is checked again
RESULT = "answer string"  # schema of a task's result
STAGES = "hopsml.stages"  # local property of a job with the stages at its start, so that all jobs share one plan
PushBatches = Callable[["Iterator[pa.RecordBatch]"], "Iterator[pa.RecordBatch]"]


def unsupported_rows_reason(fields: Sequence[Field], is_streaming: bool = False) -> str:
    """Return why the rows cannot form batches, with the remedy; an empty string if they can.

    Args:
        fields: fields of the DataFrame's schema, as JSON.
        is_streaming: whether the DataFrame is a stream, which is rejected.
    """
    if is_streaming:
        return "is a stream, which has no end; use a DataFrame of spark.read, or write the stream out before"
    if not fields:
        return "has no columns; select those that the training reads"
    counts = Counter(_names(fields))
    if twice := [name for name, count in counts.items() if count > 1]:
        return f"has several columns with the name {', '.join(twice)}; rename them, or remove them by df.drop(...)"
    for field in fields:
        if kind := _without_array(field["type"]):
            return (
                f"has the column {field['name']} with values of type {kind}, which cannot be converted to an array; "
                f"call df.drop({field['name']!r}), or convert the column to numbers, text or lists before"
            )
    return ""


def _names(fields: Sequence[Field], above: str = "") -> Iterator[str]:
    """Yield the names of the columns that the fields become; those of a struct are ``struct.field``."""
    for field in fields:
        name, kind = f"{above}{field['name']}", field["type"]
        if isinstance(kind, Mapping) and kind["type"] == "struct":
            yield from _names(kind["fields"], f"{name}.")
        else:
            yield name


def _without_array(kind: Any, in_list: bool = False) -> str:
    """Return the first type within ``kind`` that no array can hold; an empty string if there is none."""
    if isinstance(kind, str):
        return "" if _WITH_ARRAY.fullmatch(kind) else kind
    match kind["type"]:
        case "array":
            return _without_array(kind["elementType"], in_list=True)
        case "struct" if in_list:
            return "array of struct"
        case "struct":
            return next(filter(None, (_without_array(field["type"]) for field in kind["fields"])), "")
        case "udt":
            name = str(kind.get("class", "")).rpartition(".")[2]
            if name == _VECTOR:
                return f"array of {name}" if in_list else ""
            return name if name == _MATRIX else _without_array(kind.get("sqlType", ""), in_list)
        case other:
            return str(other)


JAR = Path(__file__).parent / "lib" / "hopsml-spark-push.jar"


class JvmPush:
    """Plan of one DataFrame and its transfer jobs in the JVM; failures raise py4j's errors.

    Attributes:
        sender: the implementation, as notes name it.
    """

    sender = "Spark's JVM"

    def __init__(self, frame: Any) -> None:
        """Create the plan of a DataFrame in the JVM; raises py4j's error for a schema that is not supported."""
        self._rows = jvm_classes(frame).PushRows(frame._jdf.queryExecution())

    @property
    def partition_count(self) -> int:
        """Number of partitions of the plan; reading it computes the query up to its last shuffle."""
        return int(self._rows.partitions())

    def push(
        self,
        name: str,
        stages: Sequence[StageAddress],
        partitions: Sequence[int],
        arrived: Callable[[list[StagedPartition]], object],
    ) -> None:
        """Send these partitions to these stages, as a job of the calling thread's job group; waits for its end."""
        await_push_job(
            self._rows.push(name, format_stages(stages), ",".join(map(str, partitions))), parse_result, arrived
        )


def jvm_classes(frame: Any) -> Any:
    """Return the classes of ``native/spark_push`` in the JVM of a DataFrame; its executors fetch them as well."""
    session = frame.sparkSession
    session.sql(f"ADD JAR '{JAR}'")
    return session._jvm.io.hopsml


def why_jvm_push_unusable(frame: Any) -> str:
    """Return why this Spark cannot load the classes of ``native/spark_push``; "" if it can."""
    if not JAR.exists():
        return f"{JAR.name} is not installed"
    try:
        jvm_classes(frame).PushJob.check()
    except Exception as error:  # noqa: BLE001 py4j's, of any error in the JVM
        return str(getattr(error, "java_exception", error)).partition("\n")[0] or repr(error)
    return ""


def await_push_job(
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


def format_stages(stages: Sequence[StageAddress]) -> str:
    """Format the addresses of stages as lines, which ``Stage.parse`` in the JVM reads."""
    return "\n".join("\t".join(_words(one)) for one in stages)


def _words(one: StageAddress) -> list[str]:
    """Return the fields of a stage's address, with the certificate in Base64."""
    certificate = base64.b64encode(one.certificate.encode()).decode()
    return [one.url, one.host, str(one.door), one.token, certificate, one.hostname, one.folder]


def parse_result(answer: str) -> StagedPartition:
    """Parse the line that the JVM class ``PushTask`` returns for a partition."""
    partition, attempt, stage, *batches = answer.split(" ")
    sizes = [tuple(map(int, batch.split(":"))) for batch in batches]
    shards = tuple(StagedShard(number, 1, rows, size) for number, (rows, size) in enumerate(sizes))
    return StagedPartition(int(partition), int(attempt), stage, shards)


class PythonPush:
    """Plan of one DataFrame and its transfer jobs in Python tasks; failures raise py4j's errors.

    Attributes:
        sender: the implementation, as notes name it.
    """

    sender = "Python"

    def __init__(self, name: str, frame: Any, has_classes: bool) -> None:
        """Create the plan of a DataFrame.

        Args:
            name: name of the DataFrame in ``data=``.
            frame: the DataFrame.
            has_classes: whether its JVM can load ``native/spark_push``; else all results arrive at the end of a job.
        """
        check_pandas()
        answers = frame.mapInArrow(push_function(name), RESULT)
        self._context = frame.sparkSession.sparkContext
        self._rows: Any = jvm_classes(frame).AnswerRows(answers._jdf.queryExecution()) if has_classes else None
        self._answers = None if has_classes else answers.rdd

    @property
    def partition_count(self) -> int:
        """Number of partitions of the plan; reading it computes the query up to its last shuffle."""
        return int(self._rows.partitions() if self._answers is None else self._answers.getNumPartitions())

    def push(
        self,
        name: str,
        stages: Sequence[StageAddress],
        partitions: Sequence[int],
        arrived: Callable[[list[StagedPartition]], object],
    ) -> None:
        """Send these partitions to these stages, as a job of the calling thread's job group; waits for its end."""
        self._context.setLocalProperty(STAGES, encode_stages(tuple(stages)))
        if self._answers is None:
            await_push_job(self._rows.push(",".join(map(str, partitions))), decode_task_result, arrived)
        else:
            rows = self._context.runJob(self._answers, list, list(partitions))
            arrived([decode_task_result(row.answer) for row in rows])


def check_pandas() -> None:
    """Raise ArgumentError without pandas, which ``DataFrame.mapInArrow`` imports; warn about an untried version."""
    if find_spec("pandas") is None:
        raise ArgumentError(
            "Spark needs pandas to pass rows of these types to Python, in the driver and on executors; "
            + extras.install_command("spark")
        )
    check_installed(PANDAS)


def push_function(name: str) -> PushBatches:
    """Return the function that each task calls with its record batches, for ``mapInArrow``."""

    def push(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from hopsml.training.data import push as here

        yield here.push_partition(name, batches)

    return push


def encode_stages(stages: tuple[StageAddress, ...]) -> str:
    """Encode the stages as the value of the local property ``STAGES``."""
    return base64.b64encode(msgspec.msgpack.encode(stages)).decode()


def decode_task_result(answer: str) -> StagedPartition:
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
    client = StageClient(choose_stage(stages, socket.gethostname(), partition, task.attemptNumber()))
    try:
        first = next(batches, None)
        schema = first.schema if first is not None else pa.schema([])
        all_of_them = itertools.chain([] if first is None else [first], batches)
        shards = client.put(name, partition, attempt, schema, all_of_them)
    finally:
        client.close()
    answer = msgspec.msgpack.encode(StagedPartition(partition, attempt, client.address.url, shards))
    return pa.RecordBatch.from_arrays([pa.array([base64.b64encode(answer).decode()])], ["answer"])


def choose_stage(stages: tuple[StageAddress, ...], hostname: str, partition: int, attempt: int) -> StageAddress:
    """Return the stage for an attempt at a partition.

    The first attempt goes to a stage on the same machine if there is one, spread by partition number; a repeated
    attempt goes to any stage.
    """
    near = [stage for stage in stages if stage.hostname == hostname]
    among = near if near and not attempt else stages
    return among[(partition + attempt) % len(among)]
