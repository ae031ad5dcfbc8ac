"""What the command line says; every benchmark gets it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

_T = TypeVar("_T")


@dataclass(frozen=True)
class Options:
    """``rounds`` None: the benchmark's own number; ``peers``: of those that it knows, all when empty."""

    quick: bool = False
    rounds: int | None = None
    peers: tuple[str, ...] = ()
    say: Callable[[str], None] = print

    def choose(self, full: _T, quick: _T) -> _T:
        """One of the two, by ``quick``."""
        return quick if self.quick else full

    def rounds_of(self, full: int, quick: int) -> int:
        """What was asked for, else the benchmark's number."""
        return self.rounds if self.rounds is not None else self.choose(full, quick)

    def wants(self, peer: str) -> bool:
        """Whether this peer takes part."""
        return not self.peers or peer in self.peers
