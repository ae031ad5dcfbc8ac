"""Tests of the step reports of the loop for parameter servers; pure."""

from __future__ import annotations

import numpy as np
import pytest

from hopsml.training.tensorflow.fit.callbacks import scalars
from hopsml.training.tensorflow.fit.server_loop import mean_staleness

pytestmark = pytest.mark.fast


def test_mean_passed_counts_updates_between_read_and_update() -> None:
    assert mean_staleness(100, 103, 100 + 101 + 102) == 0.0  # each reader found the value that it had read
    assert mean_staleness(100, 103, 100 + 100 + 101) == pytest.approx(2 / 3)  # the last two were passed by one
    assert mean_staleness(5, 5, 0) == 0.0  # no step yet


def test_only_scalar_metrics_are_reported() -> None:
    """A metric may give one for each class."""
    assert scalars({"loss": np.float32(0.5), "f1": np.array([0.1, 0.2]), "mae": np.array([2.0])}) == {
        "loss": 0.5,
        "mae": 2.0,
    }
