"""Gangs placed whole on nodes that are there, that boot, and that could be added: so that what is free in pieces counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hopsml.service.scheduler.nodes import Array, Nodes
from hopsml.service.scheduler.resources import GangShape, Placement, Resources


class Packing:
    """``nodes``: as they are; they stay so. ``taken``: names of nodes on which a gang of this plan is."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes.clone()
        self._hidden: set[str] = set()
        self.taken: set[str] = set()

    def put(self, name: str, capacity: Resources, label: str, *, hidden: bool = False) -> None:
        """One node more, or one that was closed with what is on it; a hidden one is only there where it is named."""
        self._nodes.put(name, capacity, label)
        if hidden:
            self._hidden.add(name)

    def close(self, name: str) -> None:
        """Nothing more is placed there."""
        self._nodes.close(name)

    def give_back(self, gang: GangShape, placement: Placement) -> None:
        """Act as if a gang had ended."""
        self._nodes.forget(gang, placement)

    def place(self, gang: GangShape, shown: Iterable[str] = ()) -> Placement | None:
        """Where it would go, with what it cannot do without; ``shown``: hidden nodes that it may have."""
        return self._nodes.place(gang, self._free(set(shown)), least=True)

    def take(self, gang: GangShape, placement: Placement) -> None:
        """It goes there; nodes that were hidden are not from now on."""
        self._nodes.promise(gang, placement)
        names = {name for nodes in placement for name in nodes}
        self.taken |= names
        self._hidden -= names

    def _free(self, shown: set[str]) -> Array:
        free = self._nodes.copy()
        free[[self._nodes.rows[name] for name in self._hidden - shown]] = 0
        return free


@dataclass(frozen=True, slots=True)
class NodeOffer:
    """Hidden nodes of one group, each of which costs ``price``."""

    names: Sequence[str]
    price: float


def cheapest(
    packing: Packing, gang: GangShape, offers: Sequence[NodeOffer], also: Sequence[str] = ()
) -> Placement | None:
    """Where a gang would go with as little of the offers as will do; None where all of them do not.

    Each group in turn is thought to be the best one, and of the others is taken what it cannot do without. ``also``:
    hidden nodes that cost nothing.
    """
    if packing.place(gang, [*also, *(name for offer in offers for name in offer.names)]) is None:
        return None
    best: tuple[float, int, int, list[str]] | None = None
    for first in range(len(offers)):
        order = [offers[first], *offers[:first], *offers[first + 1 :]]
        counts = _fewest(packing, gang, order, also)
        cost = sum(offer.price * count for offer, count in zip(order, counts, strict=True))
        names = _names(order, counts)
        best = min(best or (cost, sum(counts), first, names), (cost, sum(counts), first, names))
    return packing.place(gang, [*also, *(best[3] if best is not None else [])])


def _names(offers: Sequence[NodeOffer], counts: Sequence[int]) -> list[str]:
    """Return the first nodes of each offer, as many as its count."""
    return [name for offer, count in zip(offers, counts, strict=True) for name in offer.names[:count]]


def _fewest(packing: Packing, gang: GangShape, order: Sequence[NodeOffer], also: Sequence[str]) -> list[int]:
    """How many of each offer; of the last one as few as there can be. With all of them the gang fits."""
    counts = [len(offer.names) for offer in order]

    def fits() -> bool:
        return packing.place(gang, [*also, *_names(order, counts)]) is not None

    for index in reversed(range(len(order))):
        low, high = 0, counts[index]
        while low < high:  # with ``high`` of them it is known to fit
            counts[index] = (low + high) // 2
            if fits():
                high = counts[index]
            else:
                low = counts[index] + 1
        counts[index] = high
    return counts
