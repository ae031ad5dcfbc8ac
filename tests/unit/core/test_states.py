"""Tests that run states are defined in one place and spelled only there."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from hopsml.cluster.gang.events import Phase
from hopsml.core import states
from hopsml.core.states import Lifecycle
from hopsml.errors import RunCancelled, RunError

pytestmark = pytest.mark.fast

PACKAGE = Path(states.__file__).parents[1]
# State names of other systems: YARN's applications and nodes, MLflow's runs, Airflow's jobs.
OTHERS = (
    "core/refused_names.py",
    "airflow/jobs.py",
    "core/refused_names.py",  # a name of Maggy
    "airflow/yarn_jobs.py",
    "yarn/",
    "tracking/mlflow/",
    "submission/",
    "airflow/supervisor.py",
    "maggy/trial.py",
)


def test_state_is_text_in_every_record() -> None:
    assert json.dumps({"state": Lifecycle.FINISHED}) == '{"state": "FINISHED"}'
    assert f"{Lifecycle.LOST}" == str(Lifecycle.LOST) == "LOST" and repr([Lifecycle.LOST]) == "['LOST']"


def test_every_phase_has_a_state_and_final_phases_have_distinct_ones() -> None:
    assert {phase.state for phase in Phase if not phase.is_final} == {
        Lifecycle.WAITING, Lifecycle.STARTING, Lifecycle.RUNNING, Lifecycle.CLOSING,
    }  # fmt: skip
    assert all(phase.state.is_final and phase.state == phase.value for phase in Phase if phase.is_final)


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (None, "FINISHED"),
        (RunCancelled("enough"), "CANCELLED"),
        (KeyboardInterrupt(), "CANCELLED"),
        (RunError("broken"), "FAILED"),
        (ValueError("broken"), "FAILED"),
    ],
)
def test_final_state_of_a_run_follows_from_its_error(error: BaseException | None, state: str) -> None:
    assert states.final_state(error) == state and states.final_state(error) in states.ENDS


def test_state_names_are_spelled_only_in_their_module() -> None:
    spelled, state_names = [], set(Lifecycle)
    for file in PACKAGE.rglob("*.py"):
        name = str(file.relative_to(PACKAGE))
        if name == "core/states.py" or name.startswith(OTHERS):
            continue
        content = file.read_text()
        for node in ast.walk(ast.parse(content)) if any(word in content for word in state_names) else ():
            if isinstance(node, ast.Constant) and node.value in state_names:
                spelled.append(f"{name}:{node.lineno}: {node.value}")
    assert not spelled
