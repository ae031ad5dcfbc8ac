"""Capacity of nodes, the promised part of it, and the placement of gangs: best fit, on few nodes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hopsml.service.scheduler.resources import NOTHING, GangShape, Placement, Resources, SlotGroup

Array = npt.NDArray[np.int64]
ROOM = 64  # minimum number of rows to add at a time


@dataclass(frozen=True, slots=True)
class NodeAccount:
    """Capacity of one node, and the free part of it.

    Attributes:
        label: Label of the node.
        capacity: Resources of the node.
        free: Resources that are not promised.
        others: Resources that other tenants use.
        is_open: True if slots may be placed on the node.
    """

    label: str
    capacity: Resources
    free: Resources
    others: Resources
    is_open: bool


class Nodes:
    """Nodes of a cluster with two accounts each: resources not promised, and resources not in use.

    The room of a job that is being ended is already promised to another job, and in use until the first one has ended.
    A gang is placed by the first account and started by the second. Usage by other tenants is set by ``others``.
    """

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        self.names: list[str] = []
        self.labels: list[str] = []
        self._capacity = np.zeros((0, 3), np.int64)
        self._others = np.zeros((0, 3), np.int64)
        self._free = np.zeros((0, 3), np.int64)
        self._idle = np.zeros((0, 3), np.int64)
        self._masks: dict[str, npt.NDArray[np.bool_]] | None = {}  # see _open; None: to be computed
        self._closed: set[str] = set()
        self._free_in_all: Resources | None = None  # None: to be computed

    # ------------------------------------------------------------------------------ nodes

    def set_node(self, name: str, capacity: Resources, label: str = "", *, is_open: bool = True) -> None:
        """Add or change a node. Nothing more is placed on a node that is not open; its jobs stay."""
        row = self.rows.get(name)
        is_same = row is not None and label == self.labels[row] and is_open != (name in self._closed)
        if row is None:
            row = len(self.names)
            self.names.append(name)
            self.labels.append(label)
            self.rows[name] = row
            if row >= len(self._capacity):
                self._grow()
        change = _row(capacity) - self._capacity[row]
        self._capacity[row] += change
        self._free[row] += change
        self._idle[row] += change
        self.labels[row] = label
        (self._closed.discard if is_open else self._closed.add)(name)
        self._free_in_all = None
        if not is_same:
            self._mark()

    def close(self, name: str) -> None:
        """Stop placing slots on a node; the jobs on it stay."""
        if name in self.rows and name not in self._closed:
            self._closed.add(name)
            self._mark()

    def is_open(self, name: str) -> bool:
        """Return True if slots may be placed on a node."""
        return name in self.rows and name not in self._closed

    def in_use(self, name: str) -> bool:
        """Return True if resources of a node are promised or in use, also by other tenants."""
        row = self.rows.get(name)
        if row is None:
            return False
        return bool((self._free[row] != self._capacity[row]).any() or (self._idle[row] != self._capacity[row]).any())

    def others(self, name: str, used: Resources) -> None:
        """Set the resources of a node that other tenants of the cluster use."""
        if name not in self.rows:
            return
        row = self.rows[name]
        change = _row(used) - self._others[row]
        if change.any():
            self._others[row] += change
            self._free[row] -= change
            self._idle[row] -= change
            self._free_in_all = None

    def remove_capacity(self, name: str) -> None:
        """Set the capacity of a node that has left the cluster to zero.

        The ends or changes of its jobs are separate events.
        """
        if name in self.rows:
            self.set_node(name, Resources(), self.labels[self.rows[name]], is_open=False)
            self.others(name, Resources())

    def of(self, name: str) -> NodeAccount:
        """Return label, capacity and free resources of one node, and whether gangs may be placed on it."""
        row = self.rows[name]
        return NodeAccount(
            self.labels[row],
            _resources(self._capacity[row]),
            _resources(np.maximum(self._free[row], 0)),
            _resources(self._others[row]),
            name not in self._closed,
        )

    def capacity(self, label: str | None = None) -> Resources:
        """Return the total capacity of all open nodes, or of those with one label."""
        return _resources(self._sum(self._capacity, label))

    def free(self) -> Resources:
        """Return the unpromised resources of all open nodes."""
        if self._free_in_all is None:
            self._free_in_all = _resources(self._sum(np.maximum(self._free, 0), None))
        return self._free_in_all

    def slots_by_node(self, part: SlotGroup) -> dict[str, int]:
        """Return node -> number of slots of a part that fit now; nodes without room are omitted."""
        mask = self._open.get(part.label)
        if mask is None:
            return {}
        slots = np.where(mask, _slots(self._free, part.each), 0)
        return {self.names[row]: int(slots[row]) for row in np.flatnonzero(slots)}

    def has_labels(self) -> bool:
        """Return True if any node has a label."""
        return any(self.labels)

    def largest_node(self, label: str) -> Resources:
        """Return the capacity of the largest open node with a label: by GPUs, then cores, then memory."""
        mask = self._open.get(label)
        rows = (
            [] if mask is None else [tuple(int(value) for value in self._capacity[row]) for row in np.flatnonzero(mask)]
        )
        return _resources(max(rows, default=(0, 0, 0)))

    def without_usage(self) -> Nodes:
        """Return the open nodes without any usage, to find out what could ever run."""
        other = Nodes()
        for name, row in self.rows.items():
            if name not in self._closed:
                other.set_node(name, _resources(self._capacity[row]), self.labels[row])
        return other

    def clone(self) -> Nodes:
        """Return an independent copy of the nodes with all their usage."""
        other = Nodes()
        other.rows, other.names, other.labels = dict(self.rows), list(self.names), list(self.labels)
        other._capacity, other._others = self._capacity.copy(), self._others.copy()
        other._free, other._idle, other._closed = self._free.copy(), self._idle.copy(), set(self._closed)
        other._mark()
        return other

    # ---------------------------------------------------------------------------- promises

    def place(self, gang: GangShape, trial: Array | None = None, *, least: bool = False) -> Placement | None:
        """Find a placement for a gang, with as many slots of each part as fit; None if the gang does not fit.

        Nothing is promised.

        Args:
            gang: Shape of the gang.
            trial: Free resources to use in place of the current ones (see ``copy``).
            least: True to place only the minimum number of slots.
        """
        free = self._free if trial is None else trial
        if len(gang.parts) == 1:
            part = gang.parts[0]
            only = self._choose(part, free, part.at_least if least else part.count, part.at_least)
            return None if only is None else ({self.names[row]: count for row, count in only.items()},)
        free = free.copy()
        found: list[dict[int, int]] = [{} for _ in gang.parts]
        order = sorted(range(len(gang.parts)), key=lambda index: _weight(gang.parts[index]), reverse=True)
        for index in order:
            part = gang.parts[index]
            rows = self._choose(part, free, part.at_least, part.at_least)
            if rows is None:
                return None
            _subtract(free, rows, part.each)
            found[index] = rows
        for index in order if not least else ():  # room for slots beyond the minimum
            part = gang.parts[index]
            more = self._choose(part, free, part.count - part.at_least, 1) if part.count > part.at_least else None
            for row, count in (more or {}).items():
                found[index][row] = found[index].get(row, 0) + count
            _subtract(free, more or {}, part.each)
        return tuple({self.names[row]: count for row, count in rows.items()} for rows in found)

    def could_take(self, gang: GangShape) -> bool:
        """Return True if a gang would fit if no jobs of this service ran."""
        return self.place(gang, self._capacity - self._others, least=True) is not None

    def copy(self) -> Array:
        """Return a copy of the free resources, by row, for use with ``add_placement`` and ``place``."""
        free: Array = self._free.copy()
        return free

    def add_placement(self, trial: Array, gang: GangShape, placement: Placement, sign: int = 1) -> None:
        """Add the resources of a placement to ``trial``; with ``sign=-1`` subtract them."""
        self._change(trial, gang, placement, sign)

    def promise(self, gang: GangShape, placement: Placement) -> None:
        """Promise a placement to a gang, so that no other gang is placed there."""
        self._change(self._free, gang, placement, -1)
        self._free_in_all = None

    def forget(self, gang: GangShape, placement: Placement) -> None:
        """Undo ``promise`` for this placement."""
        self._change(self._free, gang, placement, 1)
        self._free_in_all = None

    def occupy(self, gang: GangShape, placement: Placement) -> None:
        """Mark a placement as in use."""
        self._change(self._idle, gang, placement, -1)

    def vacate(self, gang: GangShape, placement: Placement) -> None:
        """Undo ``occupy`` for this placement."""
        self._change(self._idle, gang, placement, 1)

    def is_idle(self, gang: GangShape, placement: Placement) -> bool:
        """Return True if no part of a placement is in use, so that the gang can start there."""
        wanted: dict[str, Resources] = {}
        for part, nodes in zip(gang.parts, placement, strict=True):
            for name, count in nodes.items():
                wanted[name] = wanted.get(name, NOTHING).plus(part.each.times(count))
        return all(need.within(_resources(self._idle[self.rows[name]])) for name, need in wanted.items())

    # ------------------------------------------------------------------------------------- internals

    def _choose(self, part: SlotGroup, free: Array, wanted: int, least: int) -> dict[int, int] | None:
        """Return row -> slots: on the single node where the fewest resources remain, else on as few nodes as possible.

        Args:
            part: Kind of the slots.
            free: Free resources by row.
            wanted: Maximum number of slots.
            least: Minimum number of slots; with fewer the result is None.
        """
        open_rows = self._open.get(part.label)
        if open_rows is None:
            return None
        if wanted == 1:
            row = _tightest(free, open_rows & _has(free, part.each))
            return None if row is None else {row: 1}
        slots = np.where(open_rows, _slots(free, part.each), 0)
        count = min(wanted, int(slots.sum()))
        if count < least:
            return None
        chosen: dict[int, int] = {}
        for row in np.argsort(-slots, kind="stable"):
            tightest = _tightest(free, slots >= count)
            if tightest is not None:
                chosen[tightest] = count
                return chosen
            chosen[int(row)] = int(slots[row])
            count -= chosen[int(row)]
            slots[row] = 0
        return chosen

    def _change(self, account: Array, gang: GangShape, placement: Placement, sign: int) -> None:
        """Add a placement's resources, times ``sign``, to an account."""
        for part, nodes in zip(gang.parts, placement, strict=True):
            each = part.each
            for name, count in nodes.items():
                row = account[self.rows[name]]
                row[0] += sign * count * each.gpus
                row[1] += sign * count * each.cores
                row[2] += sign * count * each.memory_mib

    def _sum(self, account: Array, label: str | None) -> Array:
        """Return the sum of an account over the open rows of one label, or of all."""
        masks = [mask for name, mask in self._open.items() if label is None or name == label]
        result: Array = sum((account[mask].sum(axis=0) for mask in masks), np.zeros(3, np.int64))
        return result

    def _grow(self) -> None:
        """Add empty rows to all accounts."""
        more = np.zeros((ROOM + len(self._capacity), 3), np.int64)
        self._capacity, self._others, self._free, self._idle = (
            np.concatenate([account, more]) for account in (self._capacity, self._others, self._free, self._idle)
        )

    def _mark(self) -> None:
        """Discard the cached masks and sums."""
        self._free_in_all = self._masks = None

    @property
    def _open(self) -> dict[str, npt.NDArray[np.bool_]]:
        """Label -> mask of the rows on which slots may be placed."""
        if self._masks is None:
            self._masks = {label: np.zeros(len(self._capacity), np.bool_) for label in set(self.labels)}
            for row, (name, label) in enumerate(zip(self.names, self.labels, strict=True)):
                self._masks[label][row] = name not in self._closed
        return self._masks


def _row(resources: Resources) -> Array:
    """Return resources as an array row."""
    return np.array((resources.gpus, resources.cores, resources.memory_mib), np.int64)


def _resources(row: Iterable[Any]) -> Resources:
    """Return an array row as resources."""
    return Resources(*(int(value) for value in row))


def _weight(part: SlotGroup) -> tuple[int, int, int]:
    """Return the sorting key by which parts that are hard to place are placed first."""
    return (part.each.gpus * part.at_least, part.each.memory_mib, part.each.cores)


def _has(free: Array, need: Resources) -> npt.NDArray[np.bool_]:
    """Return the mask of the rows that have at least the needed resources."""
    result: npt.NDArray[np.bool_] = free[:, 0] >= need.gpus
    if need.cores:
        result &= free[:, 1] >= need.cores
    if need.memory_mib:
        result &= free[:, 2] >= need.memory_mib
    return result


def _slots(free: Array, need: Resources) -> Array:
    """Return the number of slots that fit into each row."""
    counts = [
        free[:, column] // amount for column, amount in enumerate((need.gpus, need.cores, need.memory_mib)) if amount
    ]
    fewest: Array = np.minimum.reduce(counts)
    return np.maximum(fewest, 0)


def _tightest(free: Array, allowed: npt.NDArray[np.bool_]) -> int | None:
    """Return the row with the fewest free GPUs, then the fewest cores, then the least memory."""
    rows = np.flatnonzero(allowed)
    if not len(rows):
        return None
    if len(rows) == 1:
        return int(rows[0])
    chosen = free[rows]
    # Cores are below 2**16 and mebibytes below 2**32, so that one key sorts by GPUs first.
    keys = (chosen[:, 0] << 48) + (np.minimum(chosen[:, 1], 0xFFFF) << 32) + np.minimum(chosen[:, 2], 0xFFFFFFFF)
    return int(rows[int(keys.argmin())])


def _subtract(free: Array, rows: dict[int, int], each: Resources) -> None:
    """Subtract slots of one size from the given rows."""
    for row, count in rows.items():
        free[row] -= _row(each) * count
