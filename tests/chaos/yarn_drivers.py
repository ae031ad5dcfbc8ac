"""Scenarios in which the driver is killed: in client mode another process resumes its run, in cluster mode YARN does."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from hopsml import experiment
from hopsml.core import processes
from hopsml.storage import checkpoints
from hopsml.storage.run_dir import EXPERIMENTS, RunDir
from tests.chaos import yarn_driver
from tests.chaos.history import Generation, generations
from tests.chaos.runner import OVER, Evidence, Outcome, judge, left_over, pids
from tests.chaos.scenarios import Scenario
from tests.chaos.yarn_scenarios import node_of
from tests.helpers.cluster.workloads import wait_until
from tests.integration.yarn.conftest import Hadoop
from tools.hadoop import daemons, spark
from tools.hadoop.settings import host

WAIT_S = 120.0
MARK = "HOPSML_TEST_CHAOS_DRIVER"  # in the environment of every process of the application
Awake = Callable[[], None] | None  # resumes frozen processes


@dataclass(frozen=True)
class Program:
    """A user's program that runs on the cluster."""

    process: subprocess.Popen[bytes]  # spark-submit, or the driver itself
    folder: Path
    mark: str
    store: str

    def runs(self) -> list[str]:
        """Return the ids of the runs whose workers have started: each writes into a folder of that name."""
        return sorted(path.name for path in self.folder.iterdir() if path.is_dir())

    def directory(self, run_id: str) -> RunDir:
        """Return the directory of a run."""
        return RunDir(f"{self.store}/{EXPERIMENTS}/{run_id}")

    def await_checkpoint(self) -> RunDir:
        """Wait until the first run has a checkpoint and later steps, and return its directory."""
        found: RunDir = wait_until(self._saved_run, "a checkpoint", WAIT_S)
        return found

    def _saved_run(self) -> RunDir | None:
        assert self.process.poll() is None, f"the program has ended: {self.output()}"
        for run_id in self.runs():
            saved = checkpoints.latest_complete(self.directory(run_id).checkpoints)
            step = self.folder / run_id / "step-0"
            if saved is not None and step.exists() and int(step.read_text()) > saved:
                return self.directory(run_id)
        return None

    def output(self) -> str:
        """Return the end of its output."""
        return (self.folder / "output").read_text(errors="replace")[-1500:]

    def living(self) -> list[int]:
        """Return all processes of the application, on every node."""
        return processes.processes_with_variable(MARK, self.mark)


@contextmanager
def program(cluster: Hadoop, folder: Path, store: str, mode: str, conf: dict[str, str]) -> Iterator[Program]:
    """Submit yarn_driver.py; its remaining processes are killed at the end."""
    mark = f"{time.monotonic_ns()}"
    settings = {**conf, f"spark.yarn.appMasterEnv.{MARK}": mark, f"spark.executorEnv.{MARK}": mark}
    settings["spark.yarn.appMasterEnv.HOPSML_PROJECT_URL"] = store
    settings["spark.yarn.maxAppAttempts"] = "2"
    over = "hopsml" if OVER == "hopsml" else "files"
    command = spark.submit_command(yarn_driver.__file__, str(folder), over, conf=settings, deploy_mode=mode)
    environment = {**cluster.submit_env(), MARK: mark, "HOPSML_PROJECT_URL": store, "PYTHONPATH": str(spark.ROOT)}
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    started = Program(process, folder, mark, store)
    try:
        yield started
    finally:
        for app in cluster.applications():
            if app["state"] in ("ACCEPTED", "RUNNING") and app["name"] == Path(yarn_driver.__file__).name:
                cluster.kill_application(app["id"])
        daemons.kill_all(started.living)
        process.kill()
        process.wait()


# ------------------------------------------------------------------------------------------ what is killed


def _client_driver(cluster: Hadoop, running: Program) -> Awake:
    """Return the driver in client mode: the JVM of spark-submit, and the program below it."""
    family = [running.process.pid, *processes.descendants_of(running.process.pid)]
    for pid in family:
        processes.kill_quietly(pid)
    return None


def _driver_after_a_frozen_node(cluster: Hadoop, running: Program) -> Awake:
    """Freeze the chief's node, then kill the driver: when the node is resumed, the run continues elsewhere."""
    chief = int((running.folder / running.runs()[0] / "pid-0-0").read_text())
    node = node_of(cluster, chief)
    frozen = daemons.containers_of(cluster.home, node)
    cluster.kill(node, signal.SIGSTOP)
    for pid in frozen:
        processes.kill_quietly(pid, signal.SIGSTOP)
    _client_driver(cluster, running)

    def awake() -> None:
        cluster.send(node, signal.SIGCONT)
        for pid in frozen:
            processes.kill_quietly(pid, signal.SIGCONT)

    return awake


def _application_master(cluster: Hadoop, running: Program) -> int:
    """Return the JVM that the driver runs below, in a container."""
    for pid in running.living():
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"org.apache.spark.deploy.yarn.ApplicationMaster" in command and b"java" in command[0]:
            return pid
    raise psutil.NoSuchProcess(0)


def _driver_in_its_container(cluster: Hadoop, running: Program) -> Awake:
    os.kill(_application_master(cluster, running), signal.SIGKILL)
    return None


def _node_of_the_driver(cluster: Hadoop, running: Program) -> Awake:
    """Kill the driver's node; it is restarted later, as the training needs as many nodes as before."""
    node = node_of(cluster, _application_master(cluster, running))
    cluster.kill(node, containers=True)
    nodes = cluster.resource_manager.nodes
    wait_until(lambda: nodes()[host(node)]["state"] == "LOST", "the loss of the node", WAIT_S)
    cluster.revive(node)
    return None


@dataclass(frozen=True)
class DriverScenario:
    """``harm`` kills the driver; in client mode the test then resumes its run, as a user would."""

    name: str
    mode: str
    harm: Callable[[Hadoop, Program], Awake]
    quick: bool = True


DRIVER_SCENARIOS = (
    DriverScenario("kill -9 of the driver in client mode, then experiment.resume", "client", _client_driver, quick=False),
    DriverScenario("kill -9 of the driver in cluster mode: YARN's second attempt", "cluster", _driver_in_its_container),
    DriverScenario("the node of the driver dies: YARN's second attempt", "cluster", _node_of_the_driver, quick=False),
    DriverScenario("the driver is killed, and a worker that was cut off wakes after its run was resumed elsewhere", "client",
                   _driver_after_a_frozen_node, quick=False),
)  # fmt: skip


def play(scenario: DriverScenario, cluster: Hadoop, folder: Path, store: str, conf: dict[str, str]) -> Outcome:
    """Submit, kill the driver after a checkpoint, let the training continue, and judge it."""
    with program(cluster, folder, store, scenario.mode, conf) as running:
        first = running.await_checkpoint()
        disturbed = time.time()
        awake = scenario.harm(cluster, running)
        value, problem = _continued(scenario, running, first)
        saved = checkpoints.steps(first.checkpoints)
        if awake is not None:
            awake()
        others = [run_id for run_id in running.runs() if run_id != first.run_id]
        parts = [folder / run_id for run_id in (first.run_id, *others)]
        left = left_over([*(pid for part in parts for pid in pids(part)), *running.living()])
        if checkpoints.steps(first.checkpoints) != saved:
            problem = f"a worker of the first run has added a checkpoint: {checkpoints.steps(first.checkpoints)}"
    lives = [generations(part) for part in parts]
    continued_by = (first.read_status() or {}).get("continued_by")
    if not problem and [running.directory(run_id).url for run_id in others] != [continued_by]:
        problem = f"the first run goes on in {continued_by}, other runs are {others}"
    # Data on the store when the driver is killed is not lost; nothing else is promised.
    limit = lives[0][-1].last - (checkpoints.latest_complete(first.checkpoints) or 0)
    evidence = Evidence(_joined(lives), disturbed, limit, value, problem, left)
    return judge(Scenario(scenario.name, lambda trial: None), "yarn", evidence)


def _continued(scenario: DriverScenario, running: Program, first: RunDir) -> tuple[Any, str]:
    """Return the final value of the training, and the problem."""
    if scenario.mode == "client":
        wait_until(lambda: all(map(processes.is_stopped, running.living())), "the end of the application", WAIT_S)
        return experiment.resume(first.url, progress=False).value, ""
    running.process.wait(WAIT_S)
    result = running.folder / "result"
    if not result.exists():
        return None, f"the second attempt left no result: {running.output()}"
    return json.loads(result.read_text())["value"], ""


def _joined(lives: list[list[Generation]]) -> list[Generation]:
    """Return the generations of several successive runs."""
    found: list[Generation] = []
    for life in lives:
        found += [dataclasses.replace(one, number=len(found) + index) for index, one in enumerate(life)]
    return found
