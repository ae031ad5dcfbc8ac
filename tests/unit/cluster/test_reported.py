"""Tests of the notes on reported values that are no numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hopsml.cluster.worker.reported import ReportedValues
from hopsml.cluster.worker.returned import plain

pytestmark = pytest.mark.fast


def notes(values: ReportedValues, step: int | None = None, **given: Any) -> list[str]:
    return list(values.notes(given, {name: plain(value) for name, value in given.items()}, step))


def test_nan_has_one_note_for_each_metric() -> None:
    values = ReportedValues()
    assert notes(values, 1, loss=0.5, accuracy=float("inf")) == []
    assert notes(values, 2, loss=np.float32("nan")) == [
        "loss is NaN at step 2: the training may have diverged, or its data contain NaN"
    ]
    assert notes(values, 3, loss=float("nan"), mae=float("nan"))[0].startswith("mae is NaN at step 3")
    assert notes(values, loss=float("nan")) == []


def test_array_that_is_stored_as_text_has_one_note() -> None:
    values = ReportedValues()
    assert notes(values, acc=np.array([0.5, 0.6])) == [
        "acc is no number: [0.5 0.6] is stored as text; report one number, such as its mean"
    ]
    assert notes(values, acc=np.array([0.5, 0.6]), phase="warm-up", one=np.array([0.5]), none=None) == []
    (note,) = notes(values, matrix=np.zeros((9, 9)))
    assert len(note) < 150 and "\n" not in note
