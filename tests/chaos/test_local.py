"""Scenarios on agents that are processes of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.runner import Outcome, play
from tests.chaos.scenarios import SCENARIOS, Scenario, played_here

pytestmark = pytest.mark.chaos
# Each kind of harm once; tests/integration/cluster/test_elastic.py tests others as well, with the weights and every sample.
# The rest is `make chaos`'s and `make test-all`'s.
ALWAYS = (
    "kill -9 of two workers of three",
    "SIGSTOP of an agent",
    "loss of all agents, and the newest checkpoint is corrupted",
)
HERE = [
    pytest.param(scenario, id=scenario.name, marks=[] if scenario.name in ALWAYS else [pytest.mark.variant])
    for scenario in played_here(scenario for scenario in SCENARIOS if scenario.needs != "spark")
]


@pytest.mark.parametrize("scenario", HERE)
def test_local_training_passes_scenario(
    scenario: Scenario, store: Path, tmp_path: Path, outcomes: list[Outcome]
) -> None:
    outcome = play(scenario, "local", tmp_path)
    outcomes.append(outcome)
    assert outcome.passed, str(outcome)
