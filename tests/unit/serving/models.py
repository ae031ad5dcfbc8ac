"""Models with predictable answers, whose calls a test can delay or let fail."""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopsml.model.description import Signature, TensorSpec
from tests.helpers.clock import END_S


class Scaled:
    """``y = x * factor`` over rows of four numbers; ``total`` is each row's sum.

    A row with -1 in it cannot be computed; one with -2 would end the process.
    """

    def __init__(self, factor: float = 2.0, free: bool = True, outputs: tuple[str, ...] = ("y",)) -> None:
        rows = None if free else 2
        specs = {"y": TensorSpec("float32", (rows, 4)), "total": TensorSpec("float32", (rows,))}
        self.signature = Signature({"x": TensorSpec("float32", (rows, 4))}, {name: specs[name] for name in outputs})
        self.factor = factor
        self.batches: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()

    def predict(self, inputs: Any) -> dict[str, NDArray[Any]]:
        x = inputs["x"]
        self.entered.set()
        assert self.gate.wait(END_S)
        self.batches.append(len(x))
        if (x == -1).any():
            raise ValueError("cannot compute -1")
        if (x == -2).any():
            sys.exit(3)
        y = x * np.float32(self.factor)
        found = {"y": y, "total": y.sum(axis=1)}
        return {name: found[name] for name in self.signature.outputs}


class Two:
    """``sum`` of the numbers ``a`` and ``b``, and ``text`` upper-cased."""

    signature = Signature(
        {"a": TensorSpec("int32", (None,)), "b": TensorSpec("int32", (None,)), "text": TensorSpec("str", (None,))},
        {"sum": TensorSpec("int32", (None,)), "upper": TensorSpec("str", (None,))},
    )

    def predict(self, inputs: Any) -> dict[str, NDArray[Any]]:
        upper = np.array([one.upper() for one in inputs["text"]], object)
        return {"sum": inputs["a"] + inputs["b"], "upper": upper}


class Doubling(Scaled):
    """Model that returns two rows per input row."""

    def predict(self, inputs: Any) -> dict[str, NDArray[Any]]:
        return {name: np.repeat(array, 2, axis=0) for name, array in super().predict(inputs).items()}
