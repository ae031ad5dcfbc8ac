"""Calls to hopsml's group whose results are wanted now, or in the next step: these travel while that one computes.

What is held is made from the beginning of the next ``strategy.run`` on, so that whatever else a step reduces, such as its
metrics, comes before it and need not wait for it. Of another generation nothing is left: who was not in it has nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hopsml.training.tensorflow import collective_ops
from hopsml.training.tensorflow.collective_ops import Wire

LABEL = "gradients"


@dataclass(frozen=True)
class Transfer:
    """One call: the sums of tensors of one type, or the rows of one tensor."""

    kind: Literal["sum", "rows"]
    tensors: list[Any]
    wire: Wire = "same"


def make(transfers: Sequence[Transfer]) -> list[list[Any]]:
    """What comes of each, now."""
    return [
        collective_ops.all_reduce(one.tensors, "sum", one.wire, LABEL)
        if one.kind == "sum"
        else [collective_ops.all_gather(one.tensors[0], LABEL)]
        for one in transfers
    ]


def hold(slot: str, transfers: Sequence[Transfer]) -> None:
    """Have them made beside the next step; ``slot``: where the results are to be found then, a name within the process."""
    library = collective_ops.load()
    for number, one in enumerate(transfers):
        place = {"order": collective_ops._order(), "slot": f"{slot}/{number}", "label": LABEL}
        with collective_ops._on_host():
            if one.kind == "sum":
                names = [collective_ops._name_of(tensor) for tensor in one.tensors]
                library.hopsml_hold_all_reduce(values=one.tensors, wire=one.wire, names=names, **place)
            else:
                library.hopsml_hold_all_gather(value=one.tensors[0], **place)


def release() -> None:
    """Have everything made that is held: the step that travels beside it begins."""
    with collective_ops._on_host():
        collective_ops.load().hopsml_release(order=collective_ops._order())


def collect(slot: str, types: Sequence[Sequence[Any]]) -> tuple[list[list[Any]], Any]:
    """What came of those that were held last, waiting for it, and whether there was any: a scalar tensor.

    Args:
        slot: that of ``hold``.
        types: of each transfer the types of its results.
    """
    import tensorflow as tf

    library = collective_ops.load()
    results, there = [], tf.constant(True)
    for number, of_one in enumerate(types):
        with collective_ops._on_host():
            found = library.hopsml_collect(order=collective_ops._order(), slot=f"{slot}/{number}", types=list(of_one))
        results.append(list(found.results))
        there = tf.logical_and(there, found.there)
    return results, there


def holds(slot: str) -> bool:
    """Whether there is something to collect, now."""
    return bool(collective_ops.load().hopsml_holds(slot=f"{slot}/0"))
