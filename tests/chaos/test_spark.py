"""Scenarios on a real Spark (local-cluster): executors are killed, and Spark replaces them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos import torch_trainings
from tests.chaos.mends import MENDS
from tests.chaos.runner import OVER, Outcome, play
from tests.chaos.scenarios import FULL, SCENARIOS, Scenario, played_here
from tests.helpers.clock import END_S
from tests.helpers.cluster.workloads import wait_until
from tests.integration.spark.conftest import end_spark, spark_environment, store

EXECUTORS = 3  # of one slot each: two agents on one executor would be lost together
pytestmark = pytest.mark.spark
__all__ = ["store"]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Yield the SparkContext that the first run creates."""
    from hopsml import experiment

    with spark_environment() as environment:
        environment.setenv("SPARK_WORKER_DIR", str(tmp_path_factory.mktemp("executors")))
        environment.setenv("HOPSML_PROJECT_URL", f"file://{tmp_path_factory.mktemp('first')}")
        environment.setenv("HOPSML_SPARK_MASTER", f"local-cluster[{EXECUTORS},1,1024]")
        from pyspark import SparkContext

        try:
            experiment.submit(lambda: None, profile="local-cluster", progress=False).result(END_S)
            experiment.shutdown()
            yield SparkContext._active_spark_context
        finally:
            experiment.shutdown()
            end_spark()


# Spark differs from other backends in who restarts an agent, and on which executor, which scenarios with a killed
# executor test. Shrinking and growing groups: a killed executor, and released agents in tests/integration/spark,
# test the same.
# To an executor it is all one which rank it has; to the group, what the loss of rank 0 is has been shown on every backend.
OF_RANK_0 = ("kill -9 of rank 0's executor", "Spark decommissions rank 0's executor")
# Tested by the scenario in which an executor is killed and replaced while the others continue.
SAID_THERE = ("kill -9 of an executor",)


def _marks(scenario: Scenario) -> list[pytest.MarkDecorator]:
    # In `make test` it is tested by integration/spark/test_trouble (a broken connection), test_search (an executor is
    # killed) and integration/cluster/test_elastic (agents that are warned).
    here = FULL and scenario.needs == "spark" and scenario.name not in (*OF_RANK_0, *SAID_THERE)
    return [] if FULL or here else [pytest.mark.variant]


HERE = [
    pytest.param(scenario, marks=_marks(scenario), id=scenario.name)
    for scenario in played_here((*SCENARIOS, *(MENDS if OVER == "hopsml" else ())))
    if scenario.needs != "local"
]


BY_TORCH = torch_trainings.on_clusters((*SCENARIOS, *(MENDS if OVER == "hopsml" else ())))


@pytest.mark.parametrize("scenario", HERE)
def test_spark_training_passes_scenario(
    scenario: Scenario, spark: Any, store: Path, tmp_path: Path, outcomes: list[Outcome]
) -> None:
    infos = spark._jsc.sc().statusTracker().getExecutorInfos
    wait_until(lambda: len(infos()) == 1 + EXECUTORS, "the executors that the last scenario has cost", 60)
    outcome = play(scenario, "spark", tmp_path)
    outcomes.append(outcome)
    assert outcome.passed, str(outcome)


@pytest.mark.torch
@pytest.mark.variant  # of those above, and of test_torch.py
@pytest.mark.parametrize("scenario", BY_TORCH, ids=lambda scenario: scenario.name)
def test_torch_on_spark_passes_scenario(
    scenario: Scenario, spark: Any, store: Path, tmp_path: Path, outcomes: list[Outcome]
) -> None:
    infos = spark._jsc.sc().statusTracker().getExecutorInfos
    wait_until(lambda: len(infos()) == 1 + EXECUTORS, "the executors that the last scenario has cost", 60)
    outcome = torch_trainings.play(scenario, "torch-spark", tmp_path)
    outcomes.append(outcome)
    assert outcome.passed, str(outcome)
