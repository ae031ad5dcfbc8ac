"""Division of the slots that a program may use among its runs; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hopsml.cluster.shared.spec import AnyGroup, ElasticGroup, IndependentGroup


@dataclass(frozen=True, slots=True)
class SlotDemand:
    """Smallest number of slots with which a run can work, and the number that it requests."""

    fewest: int
    most: int


def slot_demand(group: AnyGroup, asked: int) -> SlotDemand:
    """Return the slot demand of a run with this group that requests ``asked`` workers now."""
    if isinstance(group, ElasticGroup):
        return SlotDemand(min(group.minimum, asked), asked)
    return (
        SlotDemand(min(1, asked), asked) if isinstance(group, IndependentGroup) else SlotDemand(group.size, group.size)
    )


def shares(slots: int, demands: Sequence[SlotDemand]) -> list[int]:
    """Return for each run how many workers it may have.

    While enough slots remain, each run gets its smallest number, in order; then the earlier runs get more. A run for
    which not enough remain gets its smallest number as well: it waits for these slots.

    Args:
        slots: Slots of all runs together.
        demands: Demands of the runs in the order in which they began.
    """
    left, found = slots, []
    for one in demands:
        found.append(one.fewest if one.fewest <= left else -1)
        left -= max(0, found[-1])
    for number, one in enumerate(demands):
        if found[number] >= 0:
            more = min(one.most - one.fewest, left)
            found[number], left = found[number] + more, left - more
        else:
            found[number] = one.fewest
    return found
