"""Tests of failures of a real Spark application: executors and their Python, other jobs, the context."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

import hopsml
from hopsml import experiment
from hopsml.errors import CaptureError, CoordinatorLost, NotEnoughSlots, WorkerFailed
from hopsml.experiment import applications
from tests.helpers import clock
from tests.helpers.clock import END_S
from tests.helpers.cluster import workloads
from tests.helpers.cluster.backend_contract import GONE_S, check_run_dir, submit
from tests.helpers.cluster.workloads import WAIT_S, living, traces, wait_until
from tests.integration.spark.conftest import ROOT

pytestmark = pytest.mark.spark
SLOTS = 4


def executor_of(agent: int) -> int:
    """The executor's JVM above an agent's Python process."""
    return next(parent.pid for parent in psutil.Process(agent).parents() if "java" in parent.name())


# ------------------------------------------------------------------------------------------ the call


def test_captured_spark_context_is_refused_by_name(spark: Any, store: Path) -> None:
    data = spark.parallelize(range(3))
    for held, word in ((spark, "SparkContext"), (data, "RDD")):

        def train(held: Any = held) -> Any:
            return held

        with pytest.raises(CaptureError) as caught:
            submit(train)
        assert "held" in str(caught.value) and word in str(caught.value)
    assert not store.exists()


@pytest.mark.variant
def test_context_as_first_argument_is_ignored(spark: Any, store: Path) -> None:
    result = experiment.launch(spark, lambda a: a + 1, {"a": [1]}, progress=False)
    assert result.metrics["metric"] == 2


def test_too_many_workers_error_names_the_master(spark: Any, store: Path) -> None:
    with pytest.raises(NotEnoughSlots, match=r"num_workers=5.*4 slots \(master local-cluster\[2,2,1024\]"):
        submit(lambda: None, SLOTS + 1)


# ------------------------------------------------------------------------------------------ executors


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.variant)])
def test_killed_executor_ends_the_run_and_is_replaced_for_the_next(store: Path, tmp_path: Path, rank: int) -> None:
    run = submit(workloads.sleep_with_trace, args={"folder": str(tmp_path)}, keep_warm=60)
    found = traces(tmp_path)
    executors = [executor_of(trace.agent) for trace in found]
    doomed = [other for other, executor in enumerate(executors) if executor == executors[rank]]  # two may share it
    started = clock.awake()
    os.kill(executors[rank], 9)
    with pytest.raises(WorkerFailed) as caught:
        run.result(END_S)
    pids = [pid for trace in found for pid in (trace.worker, trace.child)]
    wait_until(lambda: not living([*pids, found[rank].agent, found[rank].server]), "the end of it all", GONE_S)
    assert clock.awake() - started < GONE_S
    assert caught.value.rank in doomed and "executor or the agent in it was killed" in caught.value.cause
    assert (
        "Spark reports for executor" in caught.value.cause
        and "137 (exit status 137: SIGKILL, sent" in caught.value.cause
    )
    check_run_dir(run, "FAILED")
    assert submit(lambda: "works", keep_warm=60).result(END_S).value == "works"


@pytest.mark.variant
def test_agent_with_a_broken_connection_is_replaced_by_spark(spark: Any, store: Path) -> None:
    """To Spark its task has succeeded unless it fails explicitly; no other would be requested while the others live."""
    ranks = submit(lambda: [os.getpid()], SLOTS, keep_warm=60).result(END_S)
    assert ranks.value
    coordinator = applications.get_or_start("local-cluster").coordinator
    lost = next(iter(coordinator.door.agents.values()))
    coordinator._loop.call_soon_threadsafe(lost.connection.transport.abort)
    wait_until(lambda: lost.agent_id not in coordinator.door.agents, "the loss", WAIT_S)
    assert submit(lambda: "works", SLOTS, keep_warm=60).result(END_S).value == "works"


@pytest.mark.parametrize("kind", [pytest.param("without hopsml", marks=pytest.mark.variant), "missing"])
def test_executor_python_that_cannot_start_agents_is_the_error(
    spark: Any, store: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    if kind == "without hopsml":
        less = f"printf %s \"$PYTHONPATH\" | tr : '\\n' | grep -vx '{ROOT}' | paste -sd:"
        without = f'PYTHONPATH=$({less}) exec {sys.executable} -S "$@"'
        python.write_text(f"#!/bin/sh\n{without}\n")
        python.chmod(0o755)
    monkeypatch.setattr(spark, "pythonExec", str(python))
    run = submit(lambda: None)
    with pytest.raises(CoordinatorLost) as caught:
        run.result(END_S)
    if kind == "without hopsml":
        assert "No module named 'hopsml'" in str(caught.value) and "PYSPARK_PYTHON" in str(caught.value)
    else:
        assert str(python) in str(caught.value)
    check_run_dir(run, "FAILED", ranks=())


def test_executors_with_another_hopsml_version_are_named(
    spark: Any, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver claims an older version, which executors compare with theirs."""
    theirs = hopsml.__version__
    monkeypatch.setattr(hopsml, "__version__", "0.0.1")
    run = submit(lambda: None)
    with pytest.raises(CoordinatorLost, match=rf"executors have hopsml {theirs}, the driver has hopsml 0\.0\.1"):
        run.result(END_S)
    check_run_dir(run, "FAILED", ranks=())


def test_agents_that_cannot_reach_the_driver_are_the_error(spark: Any, store: Path) -> None:
    applications.get_or_start("local-cluster").coordinator.addresses = (("127.0.0.1", 1),)
    run = submit(lambda: None)
    with pytest.raises(CoordinatorLost, match=r"the coordinator answers at none of its addresses: 127\.0\.0\.1:1"):
        run.result(END_S)


@pytest.mark.variant
def test_variable_of_the_executors_is_refused_or_honoured(
    spark: Any, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = '{"cluster": {"worker": ["elsewhere:1"]}, "task": {"type": "worker", "index": 0}}'
    monkeypatch.setitem(spark.environment, "TF_CONFIG", config)  # as spark.executorEnv.TF_CONFIG does
    run = submit(lambda: os.environ["TF_CONFIG"], keep_warm=60)
    with pytest.raises(WorkerFailed, match=r"TF_CONFIG is already set.*honour_environment=True"):
        run.result(END_S)
    check_run_dir(run, "FAILED")
    honoured = submit(lambda: [os.environ["TF_CONFIG"]], keep_warm=60, honour_environment=True)
    assert honoured.result(END_S).value == [config]


# ------------------------------------------------------------------------------------------ other jobs


@pytest.mark.variant
def test_user_job_runs_during_a_training(spark: Any, store: Path, tmp_path: Path) -> None:
    run = submit(workloads.report_steps, args={"folder": str(tmp_path)})
    wait_until(lambda: run.status()["phase"] == "running", "the run")
    assert spark.parallelize(range(1000), 100).map(lambda x: x + 1).count() == 1000
    assert run.running()
    (tmp_path / "go-on").touch()
    assert run.result(END_S).value == 5


def test_idle_agents_release_slots_for_a_user_job(spark: Any, store: Path, tmp_path: Path) -> None:
    args = {"folder": str(tmp_path)}
    submit(workloads.leave_trace, SLOTS, args=args, keep_warm=600).result(END_S)
    agents = [trace.agent for trace in traces(tmp_path, SLOTS)]
    assert len(set(agents)) == SLOTS and living(agents) == agents  # there is no slot left
    started = clock.awake()
    assert spark.parallelize(range(1000), 100).map(lambda x: x + 1).count() == 1000
    assert clock.awake() - started < WAIT_S
    assert submit(lambda: "works", keep_warm=600).result(END_S).value == "works"


def test_run_waits_for_slots_of_a_user_job(spark: Any, store: Path, tmp_path: Path) -> None:
    folder = str(tmp_path)

    def hold(index: int, _: Any) -> Any:
        Path(folder, f"held-{index}").touch()
        workloads.wait_for_files(folder, "go-on")
        yield index

    import threading

    job = threading.Thread(target=lambda: spark.parallelize(range(3), 3).mapPartitionsWithIndex(hold).collect())
    job.start()
    try:
        wait_until(lambda: len(list(tmp_path.glob("held-*"))) == 3, "the job")
        run, texts = submit(lambda: "works"), list[str]()
        run.observe(lambda change: texts.append(change.text))
        holder = (
            r"agents are connected; other Spark jobs of this application hold slots: stage \d+ \(collect at .+:\d+\)"
        )
        wait_until(lambda: any(re.search(holder, text) for text in texts), lambda: f"the user's job among {texts}")
        assert run.status()["phase"] == "waiting for executors"
    finally:
        (tmp_path / "go-on").touch()
        job.join(WAIT_S)
    assert run.result(END_S).value == "works"
