"""The scenarios on a real Spark (local-cluster): executors die, and Spark brings them back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.chaos.runner import Outcome, play
from tests.chaos.scenarios import SCENARIOS, Scenario
from tests.cluster.workloads import wait_until
from tests.cluster_tests.conftest import spark, store

EXECUTORS = 2
pytestmark = pytest.mark.spark
__all__ = ["spark", "store"]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_scenario(scenario: Scenario, spark: Any, store: Path, tmp_path: Path, outcomes: list[Outcome]) -> None:
    infos = spark._jsc.sc().statusTracker().getExecutorInfos
    wait_until(lambda: len(infos()) == 1 + EXECUTORS, "the executors that the last scenario has cost", 60)
    outcome = play(scenario, "spark", tmp_path)
    outcomes.append(outcome)
    assert outcome.passed, outcome
