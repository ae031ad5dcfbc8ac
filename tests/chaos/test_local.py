"""The scenarios on agents that are processes of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.runner import Outcome, play
from tests.chaos.scenarios import SCENARIOS, Scenario, played_here
from tests.experiment.conftest import store

pytestmark = pytest.mark.chaos
__all__ = ["store"]
# Said by tests/cluster/test_elastic.py as well, which looks at the weights and at every sample, too.
SAID_THERE = (
    "kill -9 of a worker",
    "kill -9 of rank 0",
    "kill -9 of all workers",
    "SIGSEGV of a worker",
    "SIGSTOP of a worker",
    "kill -9 of an agent (Spark's Python worker)",
    "3 workers, then 1, then 3",
    "reset limit reached",
)
HERE = [
    pytest.param(scenario, id=scenario.name, marks=[pytest.mark.variant] if scenario.name in SAID_THERE else [])
    for scenario in played_here(scenario for scenario in SCENARIOS if scenario.needs != "spark")
]


@pytest.mark.parametrize("scenario", HERE)
def test_scenario(scenario: Scenario, store: Path, tmp_path: Path, outcomes: list[Outcome]) -> None:
    outcome = play(scenario, "local", tmp_path)
    outcomes.append(outcome)
    assert outcome.passed, str(outcome)
