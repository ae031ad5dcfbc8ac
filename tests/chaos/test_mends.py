"""Scenarios on groups that continue in place, with agents that are processes of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos import frozen_driver
from tests.chaos.mends import MENDS
from tests.chaos.runner import OVER, Outcome, play
from tests.chaos.scenarios import Scenario, played_here

pytestmark = [pytest.mark.chaos, pytest.mark.skipif(OVER == "tensorflow", reason="all begin anew there")]
ALWAYS = ("kill -9 during an in-place reconfiguration",)
HERE = [
    pytest.param(scenario, id=scenario.name, marks=[] if scenario.name in ALWAYS else [pytest.mark.variant])
    for scenario in played_here(MENDS)
]


@pytest.mark.parametrize("scenario", HERE)
def test_in_place_training_passes_scenario(
    scenario: Scenario, store: Path, tmp_path: Path, outcomes: list[Outcome]
) -> None:
    outcome = play(scenario, "local", tmp_path, implementation="hopsml")
    outcomes.append(outcome)
    assert outcome.passed, str(outcome)


@pytest.mark.variant  # half a minute; without a reconfiguration: tests/integration/cluster/test_standstill.py
@pytest.mark.parametrize("frozen_s", [5.0, 20.0])
def test_in_place_training_survives_a_frozen_driver(
    store: Path, tmp_path: Path, outcomes: list[Outcome], frozen_s: float
) -> None:
    folder = tmp_path / "training"
    folder.mkdir()
    outcome = frozen_driver.play(folder, frozen_s, store)
    outcomes.append(outcome)
    assert outcome.passed, str(outcome)
