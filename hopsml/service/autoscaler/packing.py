"""Packing of whole gangs on current, booting and possible nodes, so that fragmented room is counted correctly."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hopsml.service.scheduler.nodes import Array, Nodes
from hopsml.service.scheduler.resources import GangShape, Placement, Resources


class Packing:
    """Copy of the nodes on which gangs are placed tentatively.

    Attributes:
        taken: Names of the nodes on which gangs were placed in this packing.
    """

    def __init__(self, nodes: Nodes) -> None:
        """Initialize the packing with a copy of the current nodes."""
        self._nodes = nodes.clone()
        self._hidden: set[str] = set()
        self.taken: set[str] = set()

    def add_node(self, name: str, capacity: Resources, label: str, *, hidden: bool = False) -> None:
        """Add a node, or open a closed one; a hidden node is used only where a method names it."""
        self._nodes.set_node(name, capacity, label)
        if hidden:
            self._hidden.add(name)

    def close(self, name: str) -> None:
        """Stop placing gangs on a node."""
        self._nodes.close(name)

    def give_back(self, gang: GangShape, placement: Placement) -> None:
        """Release the room of a gang, as if it had ended."""
        self._nodes.forget(gang, placement)

    def place(self, gang: GangShape, shown: Iterable[str] = ()) -> Placement | None:
        """Return a placement of a gang's minimum; None if it does not fit.

        Args:
            gang: Shape of the gang.
            shown: Names of hidden nodes that may be used.
        """
        return self._nodes.place(gang, self._free(set(shown)), least=True)

    def occupy(self, gang: GangShape, placement: Placement) -> None:
        """Place a gang tentatively; the hidden nodes that it uses become visible."""
        self._nodes.promise(gang, placement)
        names = {name for nodes in placement for name in nodes}
        self.taken |= names
        self._hidden -= names

    def _free(self, shown: set[str]) -> Array:
        """Return the free resources, without those of hidden nodes that are not shown."""
        free = self._nodes.copy()
        free[[self._nodes.rows[name] for name in self._hidden - shown]] = 0
        return free


@dataclass(frozen=True, slots=True)
class NodeOffer:
    """Hidden nodes of one group, at a price for each node."""

    names: Sequence[str]
    price: float


def cheapest(
    packing: Packing, gang: GangShape, offers: Sequence[NodeOffer], also: Sequence[str] = ()
) -> Placement | None:
    """Return the cheapest placement of a gang with offered nodes; None if the gang does not fit on all of them.

    Each group is tried as the preferred one, with the fewest nodes of the other groups that the gang needs.

    Args:
        packing: Current packing.
        gang: Shape of the gang.
        offers: Nodes that could be added.
        also: Hidden nodes that cost nothing.
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
    """Return how many nodes of each offer suffice, with as few of the last ones as possible."""
    counts = [len(offer.names) for offer in order]

    def fits() -> bool:
        return packing.place(gang, [*also, *_names(order, counts)]) is not None

    for index in reversed(range(len(order))):
        low, high = 0, counts[index]
        while low < high:  # ``high`` nodes are known to suffice
            counts[index] = (low + high) // 2
            if fits():
                high = counts[index]
            else:
                low = counts[index] + 1
        counts[index] = high
    return counts
