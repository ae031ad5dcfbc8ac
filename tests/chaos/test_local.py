"""The scenarios on agents that are processes of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.runner import Outcome, play
from tests.chaos.scenarios import SCENARIOS, Scenario, played_here
from tests.experiment.conftest import store

pytestmark = pytest.mark.chaos
__all__ = ["store"]
HERE = played_here(scenario for scenario in SCENARIOS if scenario.needs != "spark")


@pytest.mark.parametrize("scenario", HERE, ids=lambda scenario: scenario.name)
def test_scenario(scenario: Scenario, store: Path, tmp_path: Path, outcomes: list[Outcome]) -> None:
    outcome = play(scenario, "local", tmp_path)
    outcomes.append(outcome)
    assert outcome.passed, str(outcome)
