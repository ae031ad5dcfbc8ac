"""Rounds in which all candidates take their turn, a different one first each time; pure but for what it calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

_T = TypeVar("_T")


def alternate(
    rounds: int, candidates: Mapping[str, Callable[[], _T]], say: Callable[[str], None] = lambda line: None
) -> dict[str, list[_T]]:
    """What each candidate gave, one value a round, in the order of the rounds.

    The order is rotated from round to round, so that none profits always from what the one before it has warmed.
    """
    results: dict[str, list[_T]] = {name: [] for name in candidates}
    names = list(candidates)
    for number in range(rounds):
        shift = number % max(len(names), 1)
        for name in names[shift:] + names[:shift]:
            value = candidates[name]()
            results[name].append(value)
            say(f"round {number + 1} of {rounds}: {name}: {value}")
    return results
