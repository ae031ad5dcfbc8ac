"""Scenarios on a real YARN with HDFS: containers, nodes and daemons are killed, nodes join, drivers restart.

A container takes more than half of a node's memory, so that each executor is on a separate node.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chaos import runner, torch_trainings, yarn_drivers, yarn_search, yarn_tensorflow
from tests.chaos.mends import MENDS
from tests.chaos.runner import OVER, Outcome
from tests.chaos.scenarios import FULL, SCENARIOS, Scenario, played_here
from tests.chaos.yarn_drivers import DRIVER_SCENARIOS, DriverScenario
from tests.chaos.yarn_scenarios import YARN_SCENARIOS, containers
from tests.helpers.clock import END_S
from tests.helpers.cluster.workloads import wait_until
from tests.integration.spark.conftest import end_spark, spark_environment
from tests.integration.yarn.conftest import Hadoop

pytestmark = [pytest.mark.hadoop, pytest.mark.chaos]

NODES = 4  # one for the application master, three for workers
MEMORY = "4608m"  # of a node's 8 GB
# A lost executor, or one that Spark warns: tests/chaos/test_spark.py.
SELDOM = (
    "a NodeManager dies with its containers, and comes back",
    "YARN takes the node of the only worker out of service",
)


def _on_yarn(scenario: Scenario) -> Any:
    return pytest.param(scenario, marks=[pytest.mark.variant] if scenario.name in SELDOM else [])


HERE = [
    *(one for one in SCENARIOS if FULL and one.needs in ("", "spark")),
    *(one for one in MENDS if FULL and OVER == "hopsml" and not one.needs),
    *(_on_yarn(one) for one in played_here(YARN_SCENARIOS)),
]
BY_TORCH = torch_trainings.on_clusters(
    (*SCENARIOS, *(MENDS if OVER == "hopsml" else ()), *(YARN_SCENARIOS if FULL else ()))
)
# A second attempt of a driver: tests/unit/experiment/test_attempts.py; that YARN makes one takes two minutes to show.
DRIVERS = [pytest.param(one, marks=pytest.mark.variant) for one in DRIVER_SCENARIOS if FULL or one.quick]
for_make_chaos = pytest.mark.skipif(not FULL, reason="`make chaos` plays it")


@pytest.fixture(scope="module")
def cluster(hadoop: Hadoop) -> Iterator[Hadoop]:
    """The session's cluster with more nodes."""
    more_nodes(hadoop)
    yield hadoop
    hadoop.make_whole()


def more_nodes(cluster: Hadoop) -> None:
    while len(cluster.names("nm")) < NODES:
        cluster.add_nodemanager()


@pytest.fixture(scope="module")
def settings(cluster: Hadoop) -> dict[str, str]:
    """Return settings by which executors start on request and end when idle."""
    conf = cluster.spark_conf(memory=MEMORY)
    del conf["spark.executor.instances"]
    return conf | {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.maxExecutors": str(NODES - 1),
        "spark.dynamicAllocation.executorIdleTimeout": "4s",
        "spark.executor.maxNumFailures": "1000",
        "spark.decommission.enabled": "true",  # as conf/yarn.yaml has it
        "spark.ui.showConsoleProgress": "false",
    }


@pytest.fixture(scope="module")
def application(cluster: Hadoop, settings: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the project URL of a SparkContext in client mode, created by the first run."""
    from hopsml import experiment

    conf = tmp_path_factory.mktemp("conf")
    (conf / "chaos.yaml").write_text(yaml.safe_dump({"master": "yarn", "spark": settings}))
    with spark_environment() as environment:
        for name, value in cluster.submit_env().items():
            environment.setenv(name, value)
        environment.setenv("HOPSML_CONF_DIR", str(conf))
        environment.setenv("HOPSML_PROJECT_URL", f"{cluster.namenode_url}/Projects/chaos")
        try:
            experiment.submit(lambda: None, num_workers=1, profile="chaos", progress=False).result(END_S)
            experiment.shutdown()
            yield os.environ["HOPSML_PROJECT_URL"]
        finally:
            experiment.shutdown()
            end_spark()


@pytest.fixture(autouse=True)
def whole(cluster: Hadoop, application: str) -> Iterator[None]:
    """Restore all nodes and daemons and end all agents after each scenario."""
    from hopsml import experiment

    yield
    experiment.shutdown()
    dead = [name for name in cluster.names() if not cluster.alive(name)]
    if dead:
        cluster.revive(*dead)
    more_nodes(cluster)


@pytest.mark.parametrize("scenario", HERE, ids=lambda scenario: scenario.name)
def test_yarn_training_passes_scenario(
    scenario: Scenario, cluster: Hadoop, tmp_path: Path, outcomes: list[Outcome]
) -> None:
    outcome = runner.play(scenario, "yarn", tmp_path, cluster)
    outcomes.append(outcome)
    assert outcome.passed, str(outcome)


@pytest.mark.torch
@pytest.mark.variant  # of those above, and of test_torch.py
@pytest.mark.parametrize("scenario", BY_TORCH, ids=lambda scenario: scenario.name)
def test_torch_on_yarn_passes_scenario(
    scenario: Scenario, cluster: Hadoop, tmp_path: Path, outcomes: list[Outcome]
) -> None:
    outcome = torch_trainings.play(scenario, "torch-yarn", tmp_path, cluster)
    outcomes.append(outcome)
    assert outcome.passed, str(outcome)


@pytest.mark.parametrize("scenario", DRIVERS, ids=lambda scenario: scenario.name)
def test_yarn_driver_passes_scenario(
    scenario: DriverScenario,
    cluster: Hadoop,
    application: str,
    settings: dict[str, str],
    tmp_path: Path,
    outcomes: list[Outcome],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wait_until(lambda: containers(cluster) == 1, "the end of idle executors", 60)
    store = f"{cluster.namenode_url}/Projects/{time.monotonic_ns()}"
    monkeypatch.setenv("HOPSML_PROJECT_URL", store)
    outcome = yarn_drivers.play(scenario, cluster, tmp_path, store, settings)
    outcomes.append(outcome)
    assert outcome.passed, str(outcome)


@pytest.mark.variant  # of the one on Spark's executors: tests/integration/spark/test_search.py
def test_search_on_yarn_continues_after_an_executor_is_killed(application: str, tmp_path: Path) -> None:
    """An executor is killed during a trial, which continues on another one."""
    result, directory, step = yarn_search.play(tmp_path)
    yarn_search.check(result, directory, tmp_path, step)


@for_make_chaos
def test_tensorflow_on_yarn_survives_a_killed_worker(application: str, tmp_path: Path, outcomes: list[Outcome]) -> None:
    """A worker of a MultiWorkerMirroredStrategy is killed."""
    outcome = yarn_tensorflow.play(tmp_path)
    outcomes.append(outcome)
    assert outcome.passed, str(outcome)
