"""Tests of the trial prediction of a version before it receives requests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hopsml.model.description import Signature, TensorSpec
from hopsml.serving.loaded_versions import IncompleteOutputs, try_out

pytestmark = pytest.mark.fast
SIGNATURE = Signature({"code": TensorSpec("int64", (None, 1))}, {"output": TensorSpec("float32", (None, 1))})


class InvalidArgumentError(Exception):
    """As TensorFlow's."""


class Model:
    """Does with a row what it is told to."""

    signature = SIGNATURE

    def __init__(self, answers: Any) -> None:
        self._answers = answers
        self.rows: list[int] = []

    def predict(self, inputs: dict[str, Any]) -> dict[str, Any]:
        self.rows.append(len(inputs["code"]))
        if isinstance(self._answers, Exception):
            raise self._answers
        return {name: np.zeros((len(inputs["code"]), 1), "float32") for name in self._answers}


def test_a_row_and_two() -> None:
    model = Model(["output"])
    assert try_out(model) == "" and model.rows == [1, 2]


@pytest.mark.parametrize(
    "error", [ValueError("Found unknown categories [0]"), InvalidArgumentError("must be positive")]
)
def test_a_model_that_takes_no_zeros_is_served_all_the_same(error: Exception) -> None:
    assert try_out(Model(error)) == f"{type(error).__name__}: {error}"


def test_what_a_model_fails_of_by_itself_and_a_lacking_output_are_errors() -> None:
    with pytest.raises(RuntimeError, match="no kernel"):
        try_out(Model(RuntimeError("no kernel for this operation")))
    with pytest.raises(IncompleteOutputs, match="no output 'output'"):
        try_out(Model(["another"]))
