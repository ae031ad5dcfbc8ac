"""Scenarios on PyTorch: ``prepare`` over hopsml's collective, and DDP over gloo, where all workers restart."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.chaos import frozen_driver
from tests.chaos.mends import GOES_ON, MENDS
from tests.chaos.runner import Outcome
from tests.chaos.scenarios import FULL, SCENARIOS, Scenario, Trial
from tests.chaos.torch_trainings import WAY, play

pytestmark = [pytest.mark.chaos, pytest.mark.torch, pytest.mark.variant]
# All are variants: experiment/test_torch.py loses workers and has them again, experiment/test_torch_sharded.py resizes
# a group and compares weights, test_fit_mends.py loses three of four.


def _three_within_an_epoch(trial: Trial) -> None:
    """Kill three workers in the second of three epochs, each once the others have made steps without the previous one."""
    generation = trial.await_world(4)
    trial.await_step(14)
    trial.disturbed = time.time()
    for left in (3, 2, 1):
        os.kill(trial.pid(left, generation), signal.SIGKILL)
        generation = trial.await_world(left, generation)
        trial.run.resize(left)  # otherwise its successor would join, which is another scenario
    trial.hurry()


LOSSES = Scenario("three of four are lost within an epoch", _three_within_an_epoch, least=1, most=4,
                  args={"step_s": 0.1}, notes=GOES_ON)  # fmt: skip


GO_ON = (*MENDS, LOSSES) if WAY == "hopsml" else ()
HERE = [
    pytest.param(scenario, id=scenario.name)
    for scenario in (*SCENARIOS, *GO_ON)
    if scenario.needs != "spark" and (FULL or scenario.quick)
]


@pytest.mark.parametrize("scenario", HERE)
def test_torch_training_passes_scenario(
    scenario: Scenario, store: Path, tmp_path: Path, outcomes: list[Outcome]
) -> None:
    outcome = play(scenario, "torch", tmp_path)
    outcomes.append(outcome)
    assert outcome.passed, str(outcome)


@pytest.mark.skipif(WAY != "hopsml", reason="all begin anew there")
@pytest.mark.parametrize("frozen_s", [5.0, 20.0])
def test_torch_training_survives_a_frozen_driver(
    store: Path, tmp_path: Path, outcomes: list[Outcome], frozen_s: float
) -> None:
    folder = tmp_path / "training"
    folder.mkdir()
    outcome = frozen_driver.play(folder, frozen_s, store, "torch")
    outcomes.append(outcome)
    assert outcome.passed, str(outcome)
