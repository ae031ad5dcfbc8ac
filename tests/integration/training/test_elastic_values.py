"""Tests that every kind of TensorFlow and Keras object is restored exactly from a commit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.training.group import run_group

pytestmark = pytest.mark.tensorflow


@pytest.mark.variant  # of test_elastic_fit.py, whose successor ends with the same weights
@pytest.mark.parametrize("legacy", [pytest.param(False, id="keras 3"), pytest.param(True, id="tf_keras")])
def test_restored_state_makes_the_same_steps_and_commits_contain_no_later_update(legacy: bool, tmp_path: Path) -> None:
    env = {"TF_USE_LEGACY_KERAS": "1"} if legacy else {}
    (found,) = run_group("elastic_values:all_kinds", tmp_path, workers=1, env=env, slots=str(tmp_path / "slots"))
    assert len(found["steps"]) == (8 if legacy else 10)
    for name, (original, successor) in found["steps"].items():
        assert successor == pytest.approx(original, rel=1e-5), name
        assert original[0] != original[1], name
    nothing_in_eight_commits: list[list[str]] = [[]] * 8
    assert found["torn"] == dict.fromkeys(("model", "variables", "large"), nothing_in_eight_commits)


def test_state_that_cannot_be_committed_is_refused_with_a_remedy(tmp_path: Path) -> None:
    (found,) = run_group("elastic_values:refusals", tmp_path, workers=1)
    assert "State(model=...): this Sequential has no variables yet; build it" in found["unbuilt"]
    assert "State(model=...): this Unbuilt has no variables yet" in found["half built"]
    assert "2 optimizers have no variables yet" in found["two optimizers"]
    assert "nothing that it could train is beside it" in found["optimizer alone"]
    assert "State(values=...): this dict holds variables and plain values" in found["mixed"]
