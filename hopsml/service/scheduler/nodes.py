"""What the nodes of a cluster have, what of it is promised, and where a gang would go: best fit, on few nodes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hopsml.service.scheduler.resources import NOTHING, GangShape, Placement, Resources, SlotGroup

Array = npt.NDArray[np.int64]
ROOM = 64  # rows are made for so many nodes more at a time


@dataclass(frozen=True, slots=True)
class NodeAccount:
    """One node. ``free``: what is not promised; ``is_open``: something may be placed there."""

    label: str
    capacity: Resources
    free: Resources
    others: Resources
    is_open: bool


class Nodes:
    """Two accounts for each node: what is not ``promised``, and what is not yet in use.

    A job that is to be ended has its room promised to another already, and uses it until it has ended. A gang is
    placed by the first account and started by the second. Other tenants' use is told by ``others``.
    """

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        self.names: list[str] = []
        self.labels: list[str] = []
        self._capacity = np.zeros((0, 3), np.int64)
        self._others = np.zeros((0, 3), np.int64)
        self._free = np.zeros((0, 3), np.int64)
        self._idle = np.zeros((0, 3), np.int64)
        self._masks: dict[str, npt.NDArray[np.bool_]] | None = {}  # see _open; None: to be made anew
        self._closed: set[str] = set()
        self._free_in_all: Resources | None = None  # None: to be counted anew

    # ------------------------------------------------------------------------------ what there is

    def put(self, name: str, capacity: Resources, label: str = "", *, is_open: bool = True) -> None:
        """Add a node, or change one. Where it is not open nothing more is placed there; what is there stays."""
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
        """Place nothing more on a node; what is there stays."""
        if name in self.rows and name not in self._closed:
            self._closed.add(name)
            self._mark()

    def is_open(self, name: str) -> bool:
        """Whether something may be placed there."""
        return name in self.rows and name not in self._closed

    def in_use(self, name: str) -> bool:
        """Whether anybody has something on a node, or is promised it."""
        row = self.rows.get(name)
        if row is None:
            return False
        return bool((self._free[row] != self._capacity[row]).any() or (self._idle[row] != self._capacity[row]).any())

    def others(self, name: str, used: Resources) -> None:
        """How much of a node other tenants of the cluster use now."""
        if name not in self.rows:
            return
        row = self.rows[name]
        change = _row(used) - self._others[row]
        if change.any():
            self._others[row] += change
            self._free[row] -= change
            self._idle[row] -= change
            self._free_in_all = None

    def gone(self, name: str) -> None:
        """A node has nothing any more; jobs on it are told to have ended, or to be fewer, by their own events."""
        if name in self.rows:
            self.put(name, Resources(), self.labels[self.rows[name]], is_open=False)
            self.others(name, Resources())

    def of(self, name: str) -> NodeAccount:
        """How one node stands."""
        row = self.rows[name]
        return NodeAccount(
            self.labels[row],
            _resources(self._capacity[row]),
            _resources(np.maximum(self._free[row], 0)),
            _resources(self._others[row]),
            name not in self._closed,
        )

    def capacity(self, label: str | None = None) -> Resources:
        """Of all nodes that let something in; those of one label, or all."""
        return _resources(self._sum(self._capacity, label))

    def free(self) -> Resources:
        """What is not promised, of all nodes that let something in."""
        if self._free_in_all is None:
            self._free_in_all = _resources(self._sum(np.maximum(self._free, 0), None))
        return self._free_in_all

    def slots_by_node(self, part: SlotGroup) -> dict[str, int]:
        """How many slots of a part each node would take now; nodes that take none are left out."""
        mask = self._open.get(part.label)
        if mask is None:
            return {}
        slots = np.where(mask, _slots(self._free, part.each), 0)
        return {self.names[row]: int(slots[row]) for row in np.flatnonzero(slots)}

    def has_labels(self) -> bool:
        """Whether nodes differ by label."""
        return any(self.labels)

    def largest_node(self, label: str) -> Resources:
        """The capacity of the largest node that lets something in: by GPUs, then cores, then memory."""
        mask = self._open.get(label)
        rows = (
            [] if mask is None else [tuple(int(value) for value in self._capacity[row]) for row in np.flatnonzero(mask)]
        )
        return _resources(max(rows, default=(0, 0, 0)))

    def emptied(self) -> Nodes:
        """The same nodes with nothing on them: what could ever run here."""
        other = Nodes()
        for name, row in self.rows.items():
            if name not in self._closed:
                other.put(name, _resources(self._capacity[row]), self.labels[row])
        return other

    def clone(self) -> Nodes:
        """The same nodes with the same on them, to try on."""
        other = Nodes()
        other.rows, other.names, other.labels = dict(self.rows), list(self.names), list(self.labels)
        other._capacity, other._others = self._capacity.copy(), self._others.copy()
        other._free, other._idle, other._closed = self._free.copy(), self._idle.copy(), set(self._closed)
        other._mark()
        return other

    # ---------------------------------------------------------------------------- what is promised

    def place(self, gang: GangShape, trial: Array | None = None, *, least: bool = False) -> Placement | None:
        """Where all of a gang would go, as many slots of each part as it takes; None if it does not fit.

        ``trial``: another state of what is free (see ``copy``); nothing is promised either way. ``least``: no more
        slots than it cannot do without.
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
        for index in order if not least else ():  # what the whole has room for beyond the least
            part = gang.parts[index]
            more = self._choose(part, free, part.count - part.at_least, 1) if part.count > part.at_least else None
            for row, count in (more or {}).items():
                found[index][row] = found[index].get(row, 0) + count
            _subtract(free, more or {}, part.each)
        return tuple({self.names[row]: count for row, count in rows.items()} for rows in found)

    def could_take(self, gang: GangShape) -> bool:
        """Whether there would be room for a gang if nothing of ours were here."""
        return self.place(gang, self._capacity - self._others, least=True) is not None

    def copy(self) -> Array:
        """What is free now, to try on: ``give`` and ``place`` take it."""
        return self._free.copy()

    def give(self, trial: Array, gang: GangShape, placement: Placement, sign: int = 1) -> None:
        """Act as if a placement were free in ``trial``; with ``sign=-1`` as if it were taken."""
        self._change(trial, gang, placement, sign)

    def promise(self, gang: GangShape, placement: Placement) -> None:
        """Nobody else is placed there."""
        self._change(self._free, gang, placement, -1)
        self._free_in_all = None

    def forget(self, gang: GangShape, placement: Placement) -> None:
        """Undo ``promise``."""
        self._change(self._free, gang, placement, 1)
        self._free_in_all = None

    def use(self, gang: GangShape, placement: Placement) -> None:
        """It is in use from now on."""
        self._change(self._idle, gang, placement, -1)

    def leave(self, gang: GangShape, placement: Placement) -> None:
        """Undo ``use``."""
        self._change(self._idle, gang, placement, 1)

    def is_idle(self, gang: GangShape, placement: Placement) -> bool:
        """Whether all of it is out of use, so that the gang can start there."""
        wanted: dict[str, Resources] = {}
        for part, nodes in zip(gang.parts, placement, strict=True):
            for name, count in nodes.items():
                wanted[name] = wanted.get(name, NOTHING).plus(part.each.times(count))
        return all(need.within(_resources(self._idle[self.rows[name]])) for name, need in wanted.items())

    # ------------------------------------------------------------------------------------- inside

    def _choose(self, part: SlotGroup, free: Array, wanted: int, least: int) -> dict[int, int] | None:
        """Row -> slots: on the one node where they leave least, else on as few as there may be."""
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
        for part, nodes in zip(gang.parts, placement, strict=True):
            each = part.each
            for name, count in nodes.items():
                row = account[self.rows[name]]
                row[0] += sign * count * each.gpus
                row[1] += sign * count * each.cores
                row[2] += sign * count * each.memory_mib

    def _sum(self, account: Array, label: str | None) -> Array:
        masks = [mask for name, mask in self._open.items() if label is None or name == label]
        result: Array = sum((account[mask].sum(axis=0) for mask in masks), np.zeros(3, np.int64))
        return result

    def _grow(self) -> None:
        more = np.zeros((ROOM + len(self._capacity), 3), np.int64)
        self._capacity, self._others, self._free, self._idle = (
            np.concatenate([account, more]) for account in (self._capacity, self._others, self._free, self._idle)
        )

    def _mark(self) -> None:
        self._free_in_all = self._masks = None

    @property
    def _open(self) -> dict[str, npt.NDArray[np.bool_]]:
        """Label -> rows on which something may be placed."""
        if self._masks is None:
            self._masks = {label: np.zeros(len(self._capacity), np.bool_) for label in set(self.labels)}
            for row, (name, label) in enumerate(zip(self.names, self.labels, strict=True)):
                self._masks[label][row] = name not in self._closed
        return self._masks


def _row(resources: Resources) -> Array:
    return np.array((resources.gpus, resources.cores, resources.memory_mib), np.int64)


def _resources(row: Iterable[Any]) -> Resources:
    return Resources(*(int(value) for value in row))


def _weight(part: SlotGroup) -> tuple[int, int, int]:
    """Who is hard to place goes first."""
    return (part.each.gpus * part.at_least, part.each.memory_mib, part.each.cores)


def _has(free: Array, need: Resources) -> npt.NDArray[np.bool_]:
    result: npt.NDArray[np.bool_] = free[:, 0] >= need.gpus
    if need.cores:
        result &= free[:, 1] >= need.cores
    if need.memory_mib:
        result &= free[:, 2] >= need.memory_mib
    return result


def _slots(free: Array, need: Resources) -> Array:
    counts = [
        free[:, column] // amount for column, amount in enumerate((need.gpus, need.cores, need.memory_mib)) if amount
    ]
    fewest: Array = np.minimum.reduce(counts)
    return np.maximum(fewest, 0)


def _tightest(free: Array, allowed: npt.NDArray[np.bool_]) -> int | None:
    """The node with the fewest free GPUs, then the fewest cores, then the least memory."""
    rows = np.flatnonzero(allowed)
    if not len(rows):
        return None
    if len(rows) == 1:
        return int(rows[0])
    chosen = free[rows]
    # Cores below 2**16, mebibytes below 2**32: a key that sorts by GPUs first.
    keys = (chosen[:, 0] << 48) + (np.minimum(chosen[:, 1], 0xFFFF) << 32) + np.minimum(chosen[:, 2], 0xFFFFFFFF)
    return int(rows[int(keys.argmin())])


def _subtract(free: Array, rows: dict[int, int], each: Resources) -> None:
    for row, count in rows.items():
        free[row] -= _row(each) * count
