"""Test that the digits network learns the same with one and two workers at the same global batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.training.group import run_group

pytestmark = [pytest.mark.tensorflow, pytest.mark.variant]  # of test_keras3.py's curve, on data that a person knows


def test_accuracy_does_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    (alone,) = run_group("digits:train", tmp_path / "one", workers=1)
    first, second = run_group("digits:train", tmp_path / "two", workers=2)
    assert (alone["workers"], first["workers"]) == (1, 2)
    assert alone["accuracy"] >= 0.97
    assert first["accuracy"] >= 0.97
    assert abs(first["accuracy"] - alone["accuracy"]) <= 0.01
    assert first["weights"] == second["weights"]
    assert first["losses"] == second["losses"]
