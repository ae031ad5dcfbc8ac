"""Tests that TensorFlow's operations continue when members are killed, stopped or added during a step."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.helpers.clock import END_S

pytestmark = pytest.mark.tensorflow


@pytest.mark.variant  # of chaos/test_fit_mends.py, loss by loss
@pytest.mark.parametrize(("size", "seed"), [(3, 1)])
def test_traced_function_continues_after_changes_of_its_group(size: int, seed: int) -> None:
    command = [sys.executable, "-m", "tests.helpers.training.jobs.resuming_operations", str(size), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=END_S, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
