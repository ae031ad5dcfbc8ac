"""Tests of the steps that ``hopsml.report`` accepts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hopsml

pytestmark = pytest.mark.fast


@pytest.mark.parametrize("step", [None, 0, 7, 3.0, np.int64(3), np.array(3)])
def test_whole_numbers_of_any_kind_are_steps(step: Any) -> None:
    hopsml.report(step, loss=0.1)


@pytest.mark.parametrize("step", [{"loss": 1}, 0.5, float("nan"), "three", np.array([1, 2])])
def test_a_value_in_the_place_of_the_step_is_refused_with_the_form_that_was_meant(step: Any) -> None:
    with pytest.raises(TypeError, match=r"values go by name, for instance hopsml.report\(step=3, loss=0.1\)"):
        hopsml.report(step)
