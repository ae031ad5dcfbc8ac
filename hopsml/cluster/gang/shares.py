"""How the slots that a program may have are shared by its runs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hopsml.cluster.shared.spec import AnyGroup, ElasticGroup, IndependentGroup


@dataclass(frozen=True, slots=True)
class SlotClaim:
    """How many slots a run cannot do without, and how many it asks for."""

    fewest: int
    most: int


def claim(group: AnyGroup, asked: int) -> SlotClaim:
    """Of a run that asks for so many workers now."""
    if isinstance(group, ElasticGroup):
        return SlotClaim(min(group.minimum, asked), asked)
    return SlotClaim(min(1, asked), asked) if isinstance(group, IndependentGroup) else SlotClaim(group.size, group.size)


def shares(slots: int, claims: Sequence[SlotClaim]) -> list[int]:
    """Of each run how many workers it may have; the runs in the order in which they came.

    Each gets its fewest while there are enough, then the first of them more. One for which there are not enough is told its
    fewest, too: for these it waits.
    """
    left, found = slots, []
    for one in claims:
        found.append(one.fewest if one.fewest <= left else -1)
        left -= max(0, found[-1])
    for number, one in enumerate(claims):
        if found[number] >= 0:
            more = min(one.most - one.fewest, left)
            found[number], left = found[number] + more, left - more
        else:
            found[number] = one.fewest
    return found
