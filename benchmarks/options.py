"""Options of the command line, which every benchmark receives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

_T = TypeVar("_T")


@dataclass(frozen=True)
class Options:
    """Options of a run of benchmarks.

    ``rounds`` is None for the benchmark's own number. ``peers`` restricts the peers; empty for all.
    """

    quick: bool = False
    rounds: int | None = None
    peers: tuple[str, ...] = ()
    say: Callable[[str], None] = print

    def choose(self, full: _T, quick: _T) -> _T:
        """Return one of the two values, by ``quick``."""
        return quick if self.quick else full

    def rounds_of(self, full: int, quick: int) -> int:
        """Return the number of rounds from the command line, else the benchmark's own."""
        return self.rounds if self.rounds is not None else self.choose(full, quick)

    def wants(self, peer: str) -> bool:
        """Return True if this peer takes part."""
        return not self.peers or peer in self.peers
