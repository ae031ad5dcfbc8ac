"""Tests that Spark's JVM sends exactly the DataFrame's rows to a stage, in files and over the network."""

from __future__ import annotations

import datetime
import decimal
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import IllegalArgumentException

from hopsml.cluster.shared.tls import make_key_pair, server_context
from hopsml.experiment import frame_feed
from hopsml.training.data import push
from hopsml.training.data.frame_log import StageAddress, StagedPartition
from hopsml.training.data.push import JvmPush
from hopsml.training.data.stage import StageEndpoint, StageFolder
from tests.helpers import small_disk
from tests.helpers.clock import END_S, wait_until
from tests.integration.spark.conftest import spark_environment

pytestmark = pytest.mark.spark

TOKEN = "a token"
JOB = Path(__file__).parent / "jobs" / "rows_by_another_jar.py"


@pytest.fixture
def session(spark: Any) -> Any:
    from pyspark.sql import SparkSession

    return SparkSession(spark)


def opened(folder: Path) -> tuple[StageEndpoint, StageAddress]:
    certificate, key = make_key_pair("hopsml-stage")
    listening = socket.create_server(("127.0.0.1", 0))
    door = StageEndpoint(listening, server_context(certificate, key), TOKEN, StageFolder(folder))
    door.serve()
    name = socket.gethostname()
    return door, StageAddress("s1", certificate.decode(), TOKEN, name, str(folder), "127.0.0.1", door.port)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[StageAddress]:
    folder = tmp_path / "stage"
    folder.mkdir()
    door, address = opened(folder)
    yield address
    door.close()


def as_seen_from_another_machine(stage: StageAddress) -> StageAddress:
    """The same, as tasks on another machine see it."""
    return msgspec.structs.replace(stage, hostname="elsewhere")


def push_to_stage(push: JvmPush, stage: StageAddress, partitions: Sequence[int]) -> list[StagedPartition]:
    placed: list[StagedPartition] = []
    push.push("clicks", [stage], partitions, placed.extend)
    return placed


def rows_of(stage: StageAddress, placed: list[StagedPartition]) -> list[dict[str, Any]]:
    found = []
    for one in sorted(placed, key=lambda one: one.partition):
        with pa.memory_map(str(Path(stage.folder, one.file_path("clicks")))) as file:
            reader = pa.ipc.open_file(file)
            assert [reader.get_batch(n).num_rows for n in range(reader.num_record_batches)] == [
                shard.rows for shard in one.shards
            ]
            found += reader.read_all().to_pylist()
    return found


@pytest.mark.parametrize("where", [lambda stage: stage, as_seen_from_another_machine], ids=["file", "socket"])
def test_jvm_sends_all_column_types_with_and_without_nulls(session: Any, stage: StageAddress, where: Any) -> None:
    def row(n: int) -> tuple[Any, ...]:
        day = datetime.date(2026, 1, 1) + datetime.timedelta(n)
        moment = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(microseconds=n)
        values = (
            n % 2 == 0, n % 128, n % 30_000, n, n << 33, n / 7, n / 3, day, moment, f"ö{n}" * (n % 5),
            bytes([n % 256]) * (n % 4),
            [n / 7, float(n)], [n] * (n % 3), [n << 33, None, 1] if n % 11 == 0 else [n << 33],
        )  # fmt: skip
        nulls = [n % 13 == k or (n % 29 == 0 and n > 400) for k in range(len(values))]
        return (n, *(None if null else value for value, null in zip(values, nulls, strict=True)))

    schema = (
        "id int, bool boolean, b byte, s short, i int, l long, f float, d double, day date, moment timestamp, text string, "
        "content binary, floats array<float>, ints array<int>, longs array<long>"
    )
    content = [row(n) for n in range(1, 1000)]
    frame = session.createDataFrame(content, schema).repartition(3)
    push = JvmPush(frame)
    placed = push_to_stage(push, where(stage), range(push.partition_count))
    found = {one["id"]: tuple(one.values()) for one in rows_of(stage, placed)}
    assert len(found) == len(content)
    for given in content:
        assert [rounded(value) for value in found[given[0]]] == [rounded(value) for value in given]


def rounded(value: Any) -> Any:
    """Round floating-point numbers to what float32 can hold."""
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return round(value, 3) if isinstance(value, float) else value


def test_large_partition_is_sent_as_ordered_batches(session: Any, stage: StageAddress) -> None:
    frame = session.range(0, 5_000_000, 1, 1).selectExpr("id", "id * 2 as twice")
    (one,) = push_to_stage(JvmPush(frame), stage, [0])
    assert sum(shard.rows for shard in one.shards) == 5_000_000 and len(one.shards) == 5  # of 1 048 576 rows at most
    with pa.memory_map(str(Path(stage.folder, one.file_path("clicks")))) as file:
        table = pa.ipc.open_file(file).read_all()
    ids = table["id"].to_numpy()
    assert (ids == range(5_000_000)).all() and (table["twice"].to_numpy() == 2 * ids).all()


def test_arrived_partitions_are_reported_before_the_job_ends(session: Any, stage: StageAddress, tmp_path: Path) -> None:
    folder = str(tmp_path)

    def wait_for_the_other(batches: Any) -> Any:
        import time
        from pathlib import Path

        for batch in batches:
            while batch["id"][0].as_py() and not Path(folder, "told").exists():
                time.sleep(0.01)
            yield batch

    def told(placed: list[StagedPartition]) -> None:
        found.extend(one.partition for one in placed)
        Path(folder, "told").touch()

    found: list[int] = []
    frame = session.range(0, 100, 1, 2).mapInArrow(wait_for_the_other, "id long")
    JvmPush(frame).push("clicks", [stage], [0, 1], told)
    assert found == [0, 1]


def test_only_requested_partitions_are_sent(session: Any, stage: StageAddress) -> None:
    push = JvmPush(session.range(0, 100, 1, 5))
    placed = push_to_stage(push, stage, [3, 1])
    assert [one["id"] for one in rows_of(stage, placed)] == [*range(20, 40), *range(60, 80)]


def test_rows_of_uncompiled_plans_are_sent(session: Any, stage: StageAddress) -> None:
    """Rows of a plan that Spark does not compile are the same."""
    session.conf.set("spark.sql.codegen.wholeStage", "false")
    session.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    try:
        frame = session.createDataFrame(
            [(n, [float(n)], f"row {n}") for n in range(50)], "id long, x array<float>, t string"
        )
        push = JvmPush(frame.filter("id > 9"))
        placed = push_to_stage(push, stage, range(push.partition_count))
    finally:
        session.conf.unset("spark.sql.codegen.wholeStage")
        session.conf.unset("spark.sql.codegen.factoryMode")
    wanted = [{"id": n, "x": [float(n)], "t": f"row {n}"} for n in range(10, 50)]
    assert sorted(rows_of(stage, placed), key=lambda one: one["id"]) == wanted


@pytest.mark.parametrize(
    ("row", "schema", "column"),
    [
        ((decimal.Decimal(1),), "price decimal(5,2)", "column price is of type decimal"),
        (([["a"]],), "words array<array<string>>", "column words is of type array<array<string>>"),
        (({"a": 1},), "m map<string,int>", "column m is of type map"),
    ],
)
def test_unsupported_column_type_is_named(session: Any, row: Any, schema: str, column: str) -> None:
    with pytest.raises(IllegalArgumentException, match=column):
        JvmPush(session.createDataFrame([row], schema))


@pytest.mark.parametrize("wrong", [{"token": "another"}, {"certificate": make_key_pair("hopsml-stage")[0].decode()}])
def test_push_and_stage_authenticate_each_other(session: Any, stage: StageAddress, wrong: dict[str, Any]) -> None:
    other = msgspec.structs.replace(as_seen_from_another_machine(stage), **wrong)
    with pytest.raises(Py4JJavaError, match="cannot be kept at s1"):
        push_to_stage(JvmPush(session.range(0, 10, 1, 1)), other, [0])
    assert not list(Path(stage.folder).rglob("*.arrow*"))


@pytest.mark.parametrize("where", [lambda stage: stage, as_seen_from_another_machine], ids=["file", "socket"])
def test_full_disk_of_the_stage_is_reported(session: Any, tmp_path: Path, where: Any) -> None:
    with small_disk.mounted(tmp_path / "small", 1024) as folder:
        door, address = opened(folder)
        try:
            with pytest.raises(Py4JJavaError, match=r"data='clicks' cannot be kept at s1: .*(No space|cannot keep)"):
                push_to_stage(JvmPush(session.range(0, 1_000_000, 1, 1)), where(address), [0])
            assert not list(folder.rglob("*.part"))
        finally:
            door.close()


def test_results_of_python_tasks_arrive_by_partition(session: Any) -> None:
    texts = session.range(0, 30, 1, 3).selectExpr("cast(id as string) as text")
    rows = push.jvm_classes(texts).AnswerRows(texts._jdf.queryExecution())
    assert rows.partitions() == 3
    job, found = rows.push("0,2"), list[str]()
    while not job.isOver():
        found += list(job.next(500))
    job.finish()
    assert sorted(found) == ["0", "20"]  # the first row of each


def test_python_task_without_a_result_is_an_error(session: Any) -> None:
    frame = session.range(0, 1, 1, 1).mapInArrow(lambda batches: iter(()), push.RESULT)
    job = push.jvm_classes(frame).AnswerRows(frame._jdf.queryExecution()).push("0")
    with pytest.raises(Py4JJavaError, match="a task of data= has returned no result"):
        job.finish()


def test_rows_are_sent_by_python_with_a_warning_if_the_classes_are_missing(
    session: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert push.why_jvm_push_unusable(session.range(1)) == "", "make setup builds the jar"
    monkeypatch.setattr(push, "JAR", Path("missing.jar"))
    with caplog.at_level("WARNING"):
        assert isinstance(frame_feed._plan_of("clicks", session.range(1)), push.PythonPush)
        (note,) = wait_until(lambda: caplog.messages, "the warning, which another thread logs")
    assert "data='clicks' are sent by Python" in note and "missing.jar is not installed" in note


@pytest.mark.variant  # of the one above, with a JVM of its own that cannot load one of the classes
def test_classes_incompatible_with_this_spark_are_not_used(tmp_path: Path) -> None:
    with zipfile.ZipFile(push.JAR) as original, zipfile.ZipFile(tmp_path / "other.jar", "w") as part:
        for name in original.namelist():
            if "Nothing" not in name:
                part.writestr(name, original.read(name))
    with spark_environment() as environment:
        environment.setenv("HOPSML_PROJECT_URL", f"file://{tmp_path}/project")
        environment.setenv("SPARK_WORKER_DIR", str(tmp_path))
        command = [sys.executable, str(JOB), str(tmp_path / "other.jar")]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=END_S)
    assert done.returncode == 0 and "rows: 100" in done.stdout, done.stdout + done.stderr[-4000:]
    assert "are sent by Python" in done.stderr and "NoClassDefFoundError: io/hopsml/PushJob$Nothing" in done.stderr
