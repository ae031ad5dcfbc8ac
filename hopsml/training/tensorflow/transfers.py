"""Reductions over hopsml's group with results either now or in the next step, during which they are sent.

Held transfers are sent from the beginning of the next ``strategy.run`` on, so that other reductions of a step, such
as those of its metrics, come before them and need not wait. Transfers of an earlier generation are dropped, because a
member that was not in it has none.
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
    """One collective call: the sums of tensors of one type, or the rows of one tensor."""

    kind: Literal["sum", "rows"]
    tensors: list[Any]
    wire: Wire = "same"


def make(transfers: Sequence[Transfer]) -> list[list[Any]]:
    """Execute the transfers (sums or gathers over the group) and return the tensors that each one received."""
    return [
        collective_ops.all_reduce(one.tensors, "sum", one.wire, LABEL)
        if one.kind == "sum"
        else [collective_ops.all_gather(one.tensors[0], LABEL)]
        for one in transfers
    ]


def hold(slot: str, transfers: Sequence[Transfer]) -> None:
    """Register transfers to be performed during the next step.

    Args:
        slot: name for the results, unique within the process.
        transfers: the transfers.
    """
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
    """Start all held transfers, at the beginning of the step during which they are sent."""
    with collective_ops._on_host():
        collective_ops.load().hopsml_release(order=collective_ops._order())


def collect(slot: str, types: Sequence[Sequence[Any]]) -> tuple[list[list[Any]], Any]:
    """Wait for the results of the transfers held last, and return them.

    Args:
        slot: the slot given to ``hold``.
        types: types of the results, for each transfer.

    Returns:
        The results of each transfer, and a scalar tensor that is True if there were any.
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
    """Return True if there are results to collect now."""
    return bool(collective_ops.load().hopsml_holds(slot=f"{slot}/0"))
