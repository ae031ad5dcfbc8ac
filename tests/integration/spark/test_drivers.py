"""Tests of a whole program in client mode on an executor of two slots: interrupted, killed, its Spark stopped.

The executor simulates two GPUs, for two slots, and has spare cores, which parameter servers use.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hopsml.core import processes
from tests.helpers import clock
from tests.helpers.clock import END_S
from tests.helpers.cluster.workloads import Trace, living, traces, wait_until
from tests.integration.spark.conftest import ROOT, spark_environment

pytestmark = pytest.mark.spark
GONE_S = 10.0
START_S = 120.0  # a program, its Spark and its first run
TAG = "HOPSML_TEST_DRIVER"  # in the environment of everything that the driver starts, however it detaches itself


class Driver:
    """The driver program as a subprocess with its own session, as in a terminal."""

    def __init__(self, folder: Path, cluster: str = "[1,2,1024]", gpus: int = 0, **settings: str) -> None:
        """``cluster``: executors, cores and memory; ``gpus`` of each; ``settings`` of Spark, with _ for each dot."""
        self.tag = uuid.uuid4().hex
        conf = folder / "conf"
        conf.mkdir()
        profile = (ROOT / "conf" / "local-cluster.yaml").read_text().replace("[2,2,1024]", cluster)
        if gpus:
            settings |= _pretended(gpus)
        more = [f"  spark.{name.replace('_', '.')}: {value}\n" for name, value in settings.items()]
        (conf / "one-executor.yaml").write_text(profile.rstrip() + "\n" + "".join(more))
        (folder / "executors").mkdir()
        with spark_environment() as environment:
            environment.setenv("HOPSML_CONF_DIR", str(conf))
            environment.setenv("HOPSML_PROFILE", "one-executor")
            environment.setenv("HOPSML_PROJECT_URL", f"file://{folder}/project")
            environment.setenv("SPARK_WORKER_DIR", str(folder / "executors"))
            environment.setenv("SPARK_LOCAL_DIRS", str(folder / "executors"))
            environment.setenv("HOPSML_GPU_CLAIMS", str(folder / "claims"))
            environment.setenv("HOPSML_EMULATED_GPUS", "16")  # each context of the program acquires new ones
            environment.setenv("HOPSML_GPUS_PER_EXECUTOR", str(gpus))
            environment.setenv(TAG, self.tag)
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.integration.spark.driver"],
                cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
            )  # fmt: skip
        self.log = folder / "project"

    def say(self, do: str, **arguments: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """Return the next answer; pytest's timeout is the limit."""
        assert self.process.stdout is not None
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def descendants(self) -> list[int]:
        return living([self.process.pid, *processes.processes_with_variable(TAG, self.tag)])

    def end(self) -> None:
        for pid in self.descendants():
            processes.kill_quietly(pid)
        self.process.wait(END_S)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


def _pretended(gpus: int) -> dict[str, str]:
    """Settings by which each of Spark's workers has so many, and gives them to its executor."""
    of_each = (("amount", str(gpus)), ("discoveryScript", str(ROOT / "conf" / "discover_gpus.py")))
    return {f"{who}_resource_gpu_{what}": value for who in ("worker", "executor") for what, value in of_each}


@pytest.fixture(scope="module")
def shared_driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    driver = Driver(tmp_path_factory.mktemp("driver"), "[1,4,1024]", gpus=2)
    driver.say("quick")
    assert driver.hear() == {"value": "works"}
    yield driver
    driver.end()


@pytest.fixture
def driver(shared_driver: Driver) -> Driver:
    """The program of this file, or a new one where the test before has ended it."""
    if shared_driver.process.poll() is not None:
        pytest.fail("a test before this one has ended the driver")
    return shared_driver


def roles(driver: Driver, folder: Path, **arguments: Any) -> Any:
    """Return what the members of a run hold, by role, or the message if there is no such run."""
    folder.mkdir(exist_ok=True)
    driver.say("roles", folder=str(folder), **arguments)
    answer = driver.hear()
    return answer.get("value") or answer["message"]


def workers_alone_hold_gpus(held: dict[str, Any]) -> None:
    assert [len(gpus) for gpus, _ in held["chief"] + held["worker"]] == [1, 1], held
    assert held["chief"] != held["worker"], held
    assert held["ps"] == held["evaluator"] == [[[], "-1"]], held


@pytest.mark.variant
def test_only_workers_hold_gpus_and_other_roles_use_spare_cores(driver: Driver, tmp_path: Path) -> None:
    workers_alone_hold_gpus(roles(driver, tmp_path, servers=1, size=4))
    driver.say("quick")  # on the agents that hold GPUs
    assert driver.hear() == {"value": "works"}
    with_gpu = roles(driver, tmp_path, servers=1, size=4, evaluator_gpu=True)
    assert "3 of them need a GPU, and this cluster has at most 2 slots with one" in with_gpu
    assert "this cluster has at most 4 slots" in roles(driver, tmp_path, servers=2, size=5)


def worker_pids(found: list[Trace]) -> list[int]:
    return [pid for trace in found for pid in (trace.worker, trace.child)]


@pytest.mark.parametrize(
    "whole_group",
    [
        pytest.param(False, id="notebook", marks=pytest.mark.variant),
        pytest.param(True, id="terminal", marks=pytest.mark.variant),
    ],
)
def test_interrupted_program_ends_its_workers_and_can_continue(
    driver: Driver, tmp_path: Path, whole_group: bool
) -> None:
    driver.say("train", folder=str(tmp_path))
    found = traces(tmp_path)
    started = clock.awake()
    if whole_group:
        os.killpg(driver.process.pid, signal.SIGINT)
    else:
        os.kill(driver.process.pid, signal.SIGINT)
    assert driver.hear()["error"] == "KeyboardInterrupt"
    assert clock.awake() - started < GONE_S
    assert not living(worker_pids(found))
    # PySpark has cancelled the agents' job: the next run gets others, for these may live a moment longer.
    (tmp_path / "again").mkdir()
    driver.say("train", folder=str(tmp_path / "again"))
    again = traces(tmp_path / "again")
    assert {one.server for one in again}.isdisjoint(one.server for one in found)  # Spark uses its processes again
    os.killpg(driver.process.pid, signal.SIGINT)
    assert driver.hear()["error"] == "KeyboardInterrupt"
    driver.say("quick")
    assert driver.hear() == {"value": "works"}


@pytest.mark.parametrize(
    "size",
    [
        pytest.param({"num_workers": 2}, id="fixed"),
        pytest.param({"min_workers": 2, "max_workers": 2}, id="elastic"),
        pytest.param({"num_workers": 2, "by_itself": True}, id="by Spark itself"),
    ],
)
@pytest.mark.variant  # as the one below, whose JVM is gone
def test_stopped_spark_context_ends_the_run_at_once(driver: Driver, tmp_path: Path, size: dict[str, int]) -> None:
    driver.say("stop-spark", folder=str(tmp_path), **size)
    found = traces(tmp_path)
    started = clock.awake()
    answer = driver.hear()
    assert clock.awake() - started < GONE_S
    assert answer["error"] == "CoordinatorLost" and "SparkContext was stopped" in answer["message"], answer
    wait_until(lambda: not living(worker_pids(found)), "the workers' end", GONE_S)
    driver.say("quick")  # in a new context
    assert driver.hear() == {"value": "works"}


def test_loss_of_the_spark_jvm_ends_an_elastic_run_at_once(tmp_path: Path) -> None:
    """Its workers cannot be replaced, so it does not wait: in YARN's container the program would otherwise live on."""
    driver = Driver(tmp_path)
    try:
        driver.say("elastic", folder=str(tmp_path / "executors"))
        found = traces(tmp_path / "executors", timeout_s=START_S)
        java = next(pid for pid in processes.children_of(driver.process.pid) if _is_java(pid))
        os.kill(java, signal.SIGKILL)
        started = clock.awake()
        answer = driver.hear()
        assert clock.awake() - started < GONE_S
        assert answer["error"] == "CoordinatorLost" and "JVM" in answer["message"], answer
        assert "experiment.resume" in answer["message"]
        wait_until(lambda: not living(worker_pids(found)), "the workers' end", GONE_S)
    finally:
        driver.end()


def _is_java(pid: int) -> bool:
    return b"java" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]


def test_killed_program_leaves_no_process(driver: Driver, tmp_path: Path) -> None:
    driver.say("train", folder=str(tmp_path))
    found = traces(tmp_path)
    agents = [pid for trace in found for pid in (trace.agent, trace.server)]
    assert set(agents + worker_pids(found)) <= set(driver.descendants())
    started = clock.awake()
    os.kill(driver.process.pid, signal.SIGKILL)
    driver.process.wait()
    wait_until(lambda: not driver.descendants(), "the end of executors, agents and workers", GONE_S)
    assert clock.awake() - started < GONE_S and not living(worker_pids(found))
