"""Scenarios on trainings by Keras's ``fit`` with ``hopsml.tensorflow.callbacks()``, checked like custom loops."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.chaos.runner import Outcome, play
from tests.chaos.scenarios import SCENARIOS, Scenario
from tests.helpers.cluster import elastic_fit_workload

pytestmark = [pytest.mark.chaos, pytest.mark.tensorflow, pytest.mark.variant]
# All are variants: test_fit_mends.py loses workers of a fit, integration/cluster/test_growing.py adds workers to it,
# integration/training/test_elastic_fit.py restarts it with new processes.
OWN_ARGUMENTS = {"step_s", "commit"}


def _is_played(scenario: Scenario) -> bool:
    return scenario.needs not in ("spark", "local") and set(scenario.args) <= OWN_ARGUMENTS and not scenario.after


def _with_fits_patience(scenario: Scenario) -> Scenario:
    """Remove progress_timeout: tracing in the first step of a generation may exceed it on a busy machine."""
    others = {name: value for name, value in scenario.options.items() if name != "progress_timeout"}
    return dataclasses.replace(scenario, options=others)


HERE = [pytest.param(_with_fits_patience(scenario), id=scenario.name) for scenario in SCENARIOS if _is_played(scenario)]


@pytest.mark.parametrize("scenario", HERE)
def test_keras_fit_passes_scenario(scenario: Scenario, store: Path, tmp_path: Path, outcomes: list[Outcome]) -> None:
    outcome = play(
        scenario, "fit", tmp_path, program=elastic_fit_workload.train, environment=elastic_fit_workload.ENVIRONMENT
    )
    outcomes.append(outcome)
    assert outcome.passed, str(outcome)
