"""One bracket of synchronous successive halving: Li et al. 2018, "Hyperband", JMLR 18, algorithm 1, lines 3 to 10.

All members run to the first rung; when the last one has reached it, the best continue to the next. Members are
identified by a number: trials that pause and continue (``hyperband.Hyperband``), or configurations that are tried again
with a greater budget (``hyperband.HyperbandSearcher``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hopsml.search.algorithms.rungs import Rung


def bracket_sizes(halvings: int, of: int, factor: int) -> tuple[int, ...]:
    """Return the number of members of each rung of a bracket, first and last rung included.

    Args:
        halvings: number of halvings in this bracket.
        of: number of halvings in the bracket that has most of them (s_max of the paper).
        factor: reduction factor.
    """
    count = -(-(of + 1) * factor**halvings // (halvings + 1))  # rounded up, in integers
    return tuple(count // factor**level for level in range(halvings + 1))


class Bracket:
    """Selection of the members of a bracket that continue to the next rung.

    A member is running, waiting at a rung, or over. The decision about a member is made as soon as no further arrival
    can change it: the outcome is that of the definition, but some members need not wait. A member that is over before
    it reaches a rung leaves fewer to choose from; as many continue as planned, or all.

    Args:
        sizes: number of members of each rung; one that reaches the last rung is complete.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = list(sizes)
        self.joined = 0  # members so far, ended ones included
        self._rungs = [Rung() for _ in self.sizes[:-1]]
        self._entered = [0] * len(self.sizes)  # number of members that were ever sent to each rung
        self._heading = [0] * len(self.sizes)  # number of members that run towards it now
        self._running: dict[int, int] = {}  # member -> its next rung
        self._waiting: dict[int, int] = {}  # member -> rung at which it waits

    @property
    def expected(self) -> int:
        """Number of members that may still join before the first rung is full."""
        return max(self.sizes[0] - self.joined, 0)

    def join(self, member: int) -> None:
        """Add a member, which runs to the first rung."""
        self.joined += 1
        self._send(member, 0)

    def _send(self, member: int, level: int) -> None:
        self._running[member] = level
        self._entered[level] += 1
        self._heading[level] += 1

    def level(self, member: int) -> int:
        """Return the next rung of a running member, counted from 0."""
        return self._running[member]

    def arrive(self, member: int, score: float) -> bool | None:
        """Record that a running member has reached its rung, and decide about it if possible.

        Returns:
            True if it is promoted at once, False if it is not promoted, None if this is undecided and it waits.
        """
        level = self._running.pop(member)
        self._heading[level] -= 1
        self._rungs[level].add(member, score)
        fate = self._fate(member, level)
        if fate:
            self._send(member, level + 1)
        elif fate is None:
            self._waiting[member] = level
        return fate

    def remove_member(self, member: int) -> None:
        """Remove a member that is over; if it waited at a rung, its place there is open to the next best."""
        if member in self._waiting:
            self._rungs[self._waiting.pop(member)].remove(member)
        elif member in self._running:
            self._heading[self._running.pop(member)] -= 1

    def close(self) -> None:
        """Accept no further member: scale all rungs to the present members, with at least one on each rung."""
        if self.expected:
            share = self.joined / self.sizes[0]
            self.sizes = [max(int(size * share), 1) for size in self.sizes]
            self.sizes[0] = self.joined

    def promote(self) -> int | None:
        """Return the best waiting member that may continue, and mark it running; None if there is none.

        Higher rungs come first.
        """
        for level in reversed(range(len(self._rungs))):
            for member in self._rungs[level].best(self.sizes[level + 1] - self._outstanding(level)):
                if self._waiting.get(member) == level:
                    del self._waiting[member]
                    self._send(member, level + 1)
                    return member
        return None

    @property
    def is_complete(self) -> bool:
        """True if the bracket is complete.

        No member runs, none will join, and no waiting one will be promoted.
        """
        if self._running or self.expected:
            return False
        return not any(self._waiting_among_best(level) for level in range(len(self._rungs)))

    def _waiting_among_best(self, level: int) -> int:
        best = self._rungs[level].best(self.sizes[level + 1])
        return sum(self._waiting.get(member) == level for member in best)

    def _fate(self, member: int, level: int) -> bool | None:
        """Return True or False if a member at a rung continues or not; None if that depends on later arrivals."""
        rank, places = self._rungs[level].rank(member), self.sizes[level + 1]
        if rank >= places:
            return False
        return True if rank + self._outstanding(level) < places else None

    def _outstanding(self, level: int) -> int:
        """Return the greatest number of members that may still reach a rung."""
        if level == 0:
            return self._heading[0] + self.expected
        if self._outstanding(level - 1):
            return self._heading[level] + max(self.sizes[level] - self._entered[level], 0)
        return self._heading[level] + self._waiting_among_best(level - 1)

    def state(self) -> dict[str, Any]:
        """Return the whole bracket as JSON values, for ``restored``."""
        return {
            "sizes": list(self.sizes),
            "joined": self.joined,
            "entered": list(self._entered),
            "rungs": [rung.state() for rung in self._rungs],
            "running": [list(pair) for pair in self._running.items()],
            "waiting": [list(pair) for pair in self._waiting.items()],
        }

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Bracket:
        """Return a bracket made from another one's ``state()``."""
        bracket = cls(state["sizes"])
        bracket.joined = state["joined"]
        bracket._entered = list(state["entered"])
        bracket._rungs = [Rung.restored(rung) for rung in state["rungs"]]
        bracket._running = {member: level for member, level in state["running"]}
        for level in bracket._running.values():
            bracket._heading[level] += 1
        bracket._waiting = {member: level for member, level in state["waiting"]}
        return bracket
