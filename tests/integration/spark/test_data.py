"""Tests of DataFrames sent to the workers of a run: each row once an epoch, whatever fails."""

from __future__ import annotations

import os
import re
import runpy
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from hopsml import experiment
from hopsml.errors import ArgumentError, ArgumentTypeError, NotEnoughSlots, RunError, WorkerFailed
from hopsml.experiment import applications
from hopsml.experiment.run import Run
from hopsml.training.data import push
from tests.helpers import pages
from tests.helpers.clock import END_S
from tests.helpers.cluster.finding import agent_of
from tests.helpers.cluster.workloads import wait_until

pytestmark = pytest.mark.spark

ROWS, EPOCHS, WAIT_S = 1000, 2, 120.0
SCALE = {"scale": ("DISCRETE", [1, 2, 3, 4, 5, 6])}  # of a search


@pytest.fixture
def session(spark: Any, store: Path) -> Any:
    from pyspark.sql import SparkSession

    return SparkSession(spark)


def count(rows: Any, folder: str = "", pause_at: int = 0) -> dict[str, Any]:
    """Count how often all workers together read each row; at step ``pause_at`` they wait for a file."""
    import time
    from pathlib import Path

    import numpy as np

    import hopsml
    from hopsml.cluster.worker.context import current

    context = current()
    assert context is not None
    state = hopsml.elastic.State(counts=np.zeros(ROWS, np.int64), mine=0)
    for batch in state.resume(rows.batch(64).shuffle(seed=1, window=100).repeat(EPOCHS)):
        state.counts = state.counts + hopsml.all_reduce(np.bincount(batch["id"], minlength=ROWS), "sum")
        state.mine += len(batch["id"])
        state.commit(every=4)
        if pause_at and state.batches == pause_at and context.generation == 0:
            Path(folder, f"paused-{context.rank}").touch()
            while not Path(folder, "go").exists():
                time.sleep(0.01)
    return {
        "missed": int((EPOCHS - state.counts).sum()),
        "least": int(state.counts.min()),
        "most": int(state.counts.max()),
        "mine": state.mine,
        "generation": context.generation,
    }


@pytest.fixture(params=["by the JVM", pytest.param("by Python", marks=pytest.mark.variant)])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The way by which rows are sent to the stages."""
    if request.param == "by Python":
        monkeypatch.setattr(push, "JAR", Path("nowhere.jar"))
    return str(request.param)


def submit(function: Any, frame: Any, args: dict[str, Any] | None = None, **options: Any) -> Run:
    given = {"num_workers": 2, "progress": False, "start_timeout": WAIT_S, **options}
    return experiment.submit(function, args=args, data={"rows": frame}, **given)


def check(value: dict[str, Any]) -> None:
    assert (value["least"], value["most"]) == (EPOCHS, EPOCHS)


def stage_of(run: Run, rank: int) -> psutil.Process:
    """Return the process that stores rows beside a worker."""

    def found() -> list[psutil.Process]:
        below = agent_of(run, rank).children(recursive=True)
        return [one for one in below if "hopsml.cluster.worker.sidecar" in one.cmdline()]

    return wait_until(found, f"the stage beside rank {rank}")[0]


def test_every_dataframe_row_reaches_one_worker_per_epoch_with_its_type(session: Any) -> None:
    from pyspark.ml.linalg import Vectors
    from pyspark.sql import Row

    content = [
        Row(
            id=n,
            vector=Vectors.sparse(3, {1: float(n)}) if n % 2 else Vectors.dense([0.0, float(n), 0.0]),
            name=f"row {n}",
            image=bytes([n % 256]) * 3,
            array=[float(n), -float(n)],
            nested=Row(a=n, b=n / 2),
        )
        for n in range(ROWS)
    ]

    def train(rows: Any) -> dict[str, Any]:
        import numpy as np

        import hopsml

        counts = np.zeros(ROWS, np.int64)
        for batch in rows.batch(64).shuffle(seed=1).repeat(EPOCHS):
            ids = batch["id"]
            counts += np.bincount(ids, minlength=ROWS)
            assert batch["vector"].tolist() == [[0.0, float(n), 0.0] for n in ids]
            assert batch["name"].tolist() == [f"row {n}" for n in ids]
            assert batch["image"].tolist() == [bytes([n % 256]) * 3 for n in ids]
            assert batch["array"].tolist() == [[float(n), -float(n)] for n in ids]
            assert (batch["nested.a"] == ids).all() and (batch["nested.b"] == ids / 2).all()
        total = hopsml.all_reduce(counts, "sum")
        return {"least": int(total.min()), "most": int(total.max()), "mine": int(counts.sum())}

    frame = session.createDataFrame(content).repartition(7)
    run = submit(train, frame)
    value = run.result(END_S).value
    check(value)
    assert abs(value["mine"] - ROWS * EPOCHS / 2) <= EPOCHS
    (note,) = [note for note in run.state.notes if "data='rows'" in note]
    assert "1,000 rows" in note and "7 partition(s) at 2 agent(s)" in note
    again = submit(count, session.range(ROWS), num_workers=1)  # on the same agents, which have kept nothing
    check(again.result(END_S).value)


def test_recomputed_partition_is_not_duplicated(session: Any, tmp_path: Path) -> None:
    folder = str(tmp_path)

    def break_once(batches: Iterator[Any]) -> Iterator[Any]:
        from pathlib import Path

        for batch in batches:
            yield batch.slice(0, batch.num_rows // 2)
            mark = Path(folder, f"broken-{batch['id'][0].as_py()}")
            if not mark.exists():
                mark.touch()
                raise ValueError("half-way")
            yield batch.slice(batch.num_rows // 2)

    frame = session.range(0, ROWS, 1, 4).mapInArrow(break_once, "id long")
    check(submit(count, frame).result(END_S).value)
    assert len(list(tmp_path.glob("broken-*"))) == 4


def test_rows_lost_with_their_agent_are_sent_again(session: Any, way: str, tmp_path: Path) -> None:
    args = {"folder": str(tmp_path), "pause_at": 9}
    run = submit(count, session.range(0, ROWS, 1, 8), args, num_workers=None, min_workers=1, max_workers=2)
    wait_until(lambda: len(list(tmp_path.glob("paused-*"))) == 2, "both at batch 9", WAIT_S)
    agent_of(run, 1).kill()
    (tmp_path / "go").touch()
    value = run.result(END_S).value
    assert value["most"] == EPOCHS
    assert 0 <= value["missed"] <= 32  # the other worker's share of the current batch, if this process continues
    assert any("are computed and sent again by Spark" in note for note in run.state.notes), run.state.notes


def held_back(folder: Path, first: int) -> Any:
    """For ``mapInArrow``: rows from number ``first`` on come once there is a file ``go``."""
    where = str(folder)

    def hold(batches: Iterator[Any]) -> Iterator[Any]:
        import time
        from pathlib import Path

        for batch in batches:
            while batch["id"][0].as_py() >= first and not Path(where, "go").exists():
                time.sleep(0.01)
            yield batch

    return hold


@pytest.mark.variant
def test_training_starts_with_the_first_rows(session: Any, tmp_path: Path) -> None:
    folder = str(tmp_path)

    def train(rows: Any) -> dict[str, Any]:
        from pathlib import Path

        import numpy as np

        import hopsml

        counts = np.zeros(ROWS, np.int64)
        for batch in rows.batch(64).shuffle(seed=1).repeat(EPOCHS):
            counts += np.bincount(batch["id"], minlength=ROWS)
            Path(folder, "go").touch()
        total = hopsml.all_reduce(counts, "sum")
        return {"least": int(total.min()), "most": int(total.max())}

    frame = session.range(0, ROWS, 1, 4).mapInArrow(held_back(tmp_path, ROWS // 2), "id long")
    check(submit(train, frame).result(END_S).value)


def test_rows_wait_for_slots_held_by_other_jobs_but_not_by_agents(session: Any, spark: Any, tmp_path: Path) -> None:
    folder, started = str(tmp_path), str(tmp_path / "began")

    def hold(partition: int, _: Iterator[Any]) -> Iterator[int]:
        import time
        from pathlib import Path

        Path(f"{started}-{partition}").touch()
        while not Path(folder, "free").exists():
            time.sleep(0.01)
        yield partition

    other = threading.Thread(target=lambda: spark.range(0, 2, 1, 2).mapPartitionsWithIndex(hold).collect())
    other.start()
    try:
        wait_until(lambda: len(list(tmp_path.glob("began-*"))) == 2, "the other job", WAIT_S)
        run = submit(count, session.range(0, ROWS, 1, 4))
        wait_until(
            lambda: any("wait for a slot, since tasks of other" in note for note in run.state.notes), "the note", WAIT_S
        )
        assert not run.done()
    finally:
        (tmp_path / "free").touch()
        other.join()
    check(run.result(END_S).value)


def test_agent_lost_during_the_transfer_of_rows_is_replaced(session: Any, tmp_path: Path) -> None:
    args = {"folder": str(tmp_path), "pause_at": 5}
    frame = session.range(0, ROWS, 1, 8).mapInArrow(held_back(tmp_path, ROWS // 2), "id long")
    run = submit(count, frame, args, num_workers=None, min_workers=2, max_workers=2)
    wait_until(lambda: len(list(tmp_path.glob("paused-*"))) == 2, "both at batch 5", WAIT_S)
    agent_of(run, 1).kill()
    (tmp_path / "go").touch()
    check(run.result(END_S).value)


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.variant)])
def test_rows_lost_with_the_stage_process_are_sent_again(session: Any, tmp_path: Path, number: signal.Signals) -> None:
    args = {"folder": str(tmp_path), "pause_at": 9}
    run = submit(count, session.range(0, ROWS, 1, 8), args)
    wait_until(lambda: len(list(tmp_path.glob("paused-*"))) == 2, "both at batch 9", WAIT_S)
    os.kill(stage_of(run, 0).pid, number)
    (tmp_path / "go").touch()
    check(run.result(END_S).value)


@pytest.mark.variant
def test_shuffled_dataframe_is_read_completely(session: Any, way: str) -> None:
    frame = session.range(4 * ROWS).selectExpr(f"id % {ROWS} as id").groupBy("id").count()
    check(submit(count, frame).result(END_S).value)


@pytest.mark.parametrize("rows", [0, pytest.param(1, marks=pytest.mark.variant)])
def test_dataframe_may_have_fewer_rows_than_workers(session: Any, way: str, rows: int) -> None:
    def train(rows: Any) -> list[int]:
        import hopsml

        counting_computations = [len(batch["id"]) for batch in rows.batch(8)]
        return [len(counting_computations), int(hopsml.all_reduce(np.array([sum(counting_computations)]), "sum")[0])]

    value = submit(train, session.range(rows)).result(END_S).value
    assert value == [rows, rows]


def test_failing_dataframe_ends_the_run_with_its_cause(session: Any) -> None:
    def fail(batches: Iterator[Any]) -> Iterator[Any]:
        raise ValueError("no such price")
        yield from batches

    frame = session.range(0, ROWS, 1, 2).mapInArrow(fail, "id long")
    with pytest.raises(RunError, match="data='rows' could not be sent to the workers: ValueError: no such price"):
        submit(count, frame).result(END_S)


def test_null_in_a_dataframe_is_named_with_its_column(session: Any, way: str) -> None:
    frame = session.range(ROWS).selectExpr("id", "if(id = 7, null, id) as price")
    with pytest.raises(WorkerFailed, match=r"column 'price' of data='rows', partition \d+, has 1 null.* df.fillna"):
        submit(count, frame).result(END_S)


@pytest.mark.variant
def test_list_lengths_that_differ_at_another_worker_are_named(session: Any, way: str) -> None:
    frame = session.range(0, ROWS, 1, 2).selectExpr("id", f"if(id < {ROWS // 2}, array(1, 2), array(1, 2, 3)) as x")
    message = "column 'x' of data='rows', partition "  # that of the worker that has looked first
    with pytest.raises(
        WorkerFailed, match=f"{message}(1, holds lists of 3 .*lists of 2|0, holds lists of 2 .*lists of 3)"
    ):
        submit(count, frame).result(END_S)


@pytest.mark.variant
def test_torch_loader_processes_read_the_same_batches_of_a_dataframe(session: Any) -> None:
    def train(rows: Any) -> dict[str, Any]:
        import numpy as np
        import torch

        import hopsml

        def ids(batches: Any) -> list[list[int]]:
            return [[int(one) for one in batch["id"]] for batch in batches]

        def loaded(method: str) -> Any:
            return torch.utils.data.DataLoader(
                data.torch(), batch_size=None, num_workers=2, multiprocessing_context=method
            )

        data = rows.batch(64).shuffle(seed=1, window=100)
        wanted, same = ids(data.repeat(2)), []
        for method in ("spawn", "forkserver"):
            batches = loaded(method)
            same.append([*ids(batches), *ids(batches)] == wanted)
        try:
            message = str(ids(loaded("fork")))
        except hopsml.errors.ArgumentError as error:
            message = str(error)
        mine = np.bincount([one for batch in wanted for one in batch], minlength=ROWS)
        total = hopsml.all_reduce(mine, "sum")
        return {"same": same, "said": message, "least": int(total.min()), "most": int(total.max())}

    value = submit(train, session.range(0, ROWS, 1, 4)).result(END_S).value
    check(value)
    assert value["same"] == [True, True]
    assert "give the DataLoader multiprocessing_context='forkserver'" in value["said"]


def counting_computations(folder: Path) -> Any:
    """For ``mapInArrow``: a file for each time that a partition is computed."""
    where = str(folder)

    def note(batches: Iterator[Any]) -> Iterator[Any]:
        import uuid
        from pathlib import Path

        Path(where, f"computed-{uuid.uuid4().hex}").touch()
        yield from batches

    return note


@pytest.mark.variant
@pytest.mark.parametrize("isolation", ["reuse", "process"])
def test_trials_of_a_search_read_rows_that_are_sent_once(session: Any, tmp_path: Path, isolation: str) -> None:
    def train(rows: Any, scale: int) -> float:
        import numpy as np

        ids = np.concatenate([batch["id"] for batch in rows.batch(64).shuffle(seed=1).repeat(EPOCHS)])
        assert np.bincount(ids, minlength=ROWS).tolist() == [EPOCHS] * ROWS
        return float(scale)

    frame = session.range(0, ROWS, 1, 4).mapInArrow(counting_computations(tmp_path), "id long")
    search = experiment.submit_search(
        train,
        SCALE,
        searcher="grid",
        num_trials=None,
        data={"rows": frame},
        max_executors=2,
        isolation=isolation,
        retries=0,
        progress=False,
        start_timeout=WAIT_S,
    )
    result = search.result(END_S)
    assert result.config == {"scale": 6} and sorted(row["value"] for row in result.rows) == [1, 2, 3, 4, 5, 6]
    assert len(list(tmp_path.glob("computed-*"))) == 4
    with pytest.raises(ArgumentError, match="start it again by its verb, with data="):
        experiment.continue_search(search, num_trials=2)


@pytest.mark.variant
def test_grid_search_of_the_predecessor_reads_a_dataframe(session: Any) -> None:
    def train(rows: Any, batch: int) -> dict[str, float]:
        return {"metric": float(sum(len(one["id"]) for one in rows.batch(batch)))}

    frame = session.range(0, ROWS, 1, 3)
    result = experiment.grid_search(
        train, {"batch": [10, 64]}, data={"rows": frame}, max_executors=2, progress=False, start_timeout=WAIT_S
    )
    assert [row["value"] for row in result.rows] == [ROWS, ROWS]


@pytest.mark.variant
def test_search_with_data_leaves_spark_a_slot_and_survives_a_lost_agent(session: Any, tmp_path: Path) -> None:
    folder = str(tmp_path)

    def train(rows: Any, scale: int) -> float:
        import time
        from pathlib import Path

        from hopsml.cluster.worker.context import current

        context = current()
        assert context is not None
        seen = 0
        for number, batch in enumerate(rows.batch(64).repeat(EPOCHS)):
            seen += len(batch["id"])
            if number == 3:
                Path(folder, f"paused-{scale}").touch()
                while not Path(folder, "go").exists():
                    time.sleep(0.01)
        assert seen == EPOCHS * ROWS
        return float(scale)

    search = experiment.submit_search(
        train,
        SCALE,
        searcher="grid",
        num_trials=None,
        data={"rows": session.range(0, ROWS, 1, 4)},
        progress=False,
        start_timeout=WAIT_S,
    )
    wait_until(lambda: len(list(tmp_path.glob("paused-*"))) == 3, "three of four slots at work", WAIT_S)
    agents = applications.get_or_start().coordinator.door.agents.values()
    os.kill(next(agent.hello.pid for agent in agents if agent.work and agent.work[0] == search.run_id), signal.SIGKILL)
    (tmp_path / "go").touch()
    result = search.result(END_S)
    assert sorted(row["value"] for row in result.rows) == [1, 2, 3, 4, 5, 6]


def test_invalid_data_argument_is_refused_before_the_start(session: Any, store: Path) -> None:
    frame = session.range(ROWS)
    with pytest.raises(ArgumentTypeError, match=r"data={'rows': \.\.\.} is a list; it must be a Spark DataFrame"):
        submit(count, [1, 2])
    with pytest.raises(ArgumentTypeError, match="it must be a dict of DataFrames by the names"):
        experiment.submit(count, data=frame, progress=False)
    with pytest.raises(ArgumentTypeError, match="cannot be called with clicks"):
        experiment.submit(count, data={"clicks": frame}, progress=False)
    with pytest.raises(ArgumentTypeError, match="rows is in args= and in data="):
        submit(count, frame, {"rows": 1})
    with pytest.raises(NotEnoughSlots, match="they use all 4 slots of this cluster"):
        submit(count, frame, num_workers=4)
    with pytest.raises(ArgumentError, match=r"only for trials of one worker.* Omit workers_per_trial="):
        experiment.search(lambda rows, scale: scale, SCALE, data={"rows": frame}, workers_per_trial=2, progress=False)
    assert not list(store.glob("Experiments/*"))


@pytest.mark.variant
def test_run_with_data_cannot_be_rerun_without_it(session: Any) -> None:
    run = submit(count, session.range(ROWS))
    run.result(END_S)
    with pytest.raises(ArgumentError, match="start it again by its verb, with data="):
        experiment.rerun(run.run_dir)


def test_cancelled_run_leaves_no_spark_jobs_or_threads(session: Any, spark: Any) -> None:
    def dawdle(batches: Iterator[Any]) -> Iterator[Any]:
        import threading

        for batch in batches:
            threading.Event().wait()
            yield batch

    run = submit(count, session.range(0, ROWS, 1, 2).mapInArrow(dawdle, "id long"))
    group = f"hopsml-data-{run.run_id}"
    tracker = spark.statusTracker()
    wait_until(lambda: set(tracker.getJobIdsForGroup(group)) & set(tracker.getActiveJobsIds()), "the job", WAIT_S)
    run.cancel()
    wait_until(lambda: not set(tracker.getJobIdsForGroup(group)) & set(tracker.getActiveJobsIds()), "its end", WAIT_S)
    wait_until(lambda: not [one for one in threading.enumerate() if one.name.startswith(group)], "threads' ends")


@pytest.mark.variant  # of integration/docs/test_snippets.py, with a DataFrame
def test_dataframe_snippet_of_the_page_trains(session: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(1)
    features = rng.normal(size=(2000, 8)).astype(np.float32)
    labels = (features.sum(1) > 0).astype(np.float32)
    content = [
        (row.tolist(), float(label), "SE" if n % 4 else "NO")
        for n, (row, label) in enumerate(zip(features, labels, strict=True))
    ]
    frame = session.createDataFrame(content, "features array<float>, label float, country string")
    frame.write.parquet(str(tmp_path / "clicks"))
    script = pages.snippet("docs/how-to/data.md", "def train(clicks)").replace(
        "hdfs:///data/clicks", str(tmp_path / "clicks")
    )
    script = script.replace("num_workers=4", "num_workers=2").replace("batch(1024)", "batch(8)")
    (tmp_path / "snippet.py").write_text(script)
    runpy.run_path(str(tmp_path / "snippet.py"))
    assert float(re.search(r"'accuracy': ([\d.]+)", capsys.readouterr().out)[1]) > 0.85
