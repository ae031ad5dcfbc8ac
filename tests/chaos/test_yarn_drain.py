"""Scenario: a real YARN decommissions the node that has all workers of a training.

The number of executors is constant: YARN assigns others only after these have ended, or if more are requested.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.chaos import runner
from tests.chaos.runner import Outcome
from tests.chaos.scenarios import Scenario
from tests.chaos.yarn_scenarios import DRAIN_SCENARIOS, busy_nodes
from tests.helpers import leaks
from tests.helpers.clock import END_S
from tests.integration.spark.conftest import end_spark, spark_environment
from tests.integration.yarn.conftest import Hadoop, keep_logs
from tools.hadoop.jars import CACHE, ensure_jars
from tools.hadoop.settings import Shape

pytestmark = [pytest.mark.hadoop, pytest.mark.chaos, pytest.mark.variant]


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[Hadoop]:
    """Yield two nodes: the container of the application master fills one, and two executors the other."""
    found = Hadoop(CACHE / f"drain-{os.getpid()}")
    failed = request.session.testsfailed
    with leaks.not_of_this_test():
        found.start(ensure_jars(), Shape(nodemanagers=2, gpus=0, memory_mb=1800), guarded=True)
    yield found
    if request.session.testsfailed > failed:
        keep_logs(found.home)
    found.stop(now=True, remove=True)


@pytest.fixture
def application(cluster: Hadoop, tmp_path: Path) -> Iterator[str]:
    """Yield the project URL of a SparkContext in client mode with two executors on one node."""
    from hopsml import experiment

    settings = cluster.spark_conf(executors=2) | {
        "spark.yarn.am.memory": "1400m",
        "spark.decommission.enabled": "true",  # as conf/yarn.yaml has it
        "spark.ui.showConsoleProgress": "false",
    }
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "drain.yaml").write_text(yaml.safe_dump({"master": "yarn", "spark": settings}))
    with spark_environment() as environment:
        for name, value in cluster.submit_env().items():
            environment.setenv(name, value)
        environment.setenv("HOPSML_CONF_DIR", str(conf))
        environment.setenv("HOPSML_PROJECT_URL", f"{cluster.namenode_url}/Projects/drain")
        try:
            experiment.submit(lambda: None, num_workers=2, profile="drain", progress=False).result(END_S)
            assert len(busy_nodes(cluster)) == 2
            cluster.add_nodemanager()
            yield os.environ["HOPSML_PROJECT_URL"]
        finally:
            experiment.shutdown()
            end_spark()


@pytest.mark.parametrize("scenario", DRAIN_SCENARIOS, ids=lambda scenario: scenario.name)
def test_training_on_a_drained_yarn_node_passes_scenario(
    scenario: Scenario, cluster: Hadoop, application: str, tmp_path: Path, outcomes: list[Outcome]
) -> None:
    folder = tmp_path / "training"
    folder.mkdir()
    outcome = runner.play(scenario, "yarn", folder, cluster)
    outcomes.append(outcome)
    assert outcome.passed, str(outcome)
