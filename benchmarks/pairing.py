"""Rounds in which all candidates take turns, with a different first one each time; pure except for the calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

_T = TypeVar("_T")


def forgiving(candidate: Callable[[], _T], note: Callable[[str], None]) -> Callable[[], _T | None]:
    """Return a candidate that notes a RuntimeError and returns None, so that a failing peer does not end all."""

    def turn() -> _T | None:
        try:
            return candidate()
        except RuntimeError as error:
            note(str(error))
            return None

    return turn


def alternate(
    rounds: int, candidates: Mapping[str, Callable[[], _T]], say: Callable[[str], None] = lambda line: None
) -> dict[str, list[_T]]:
    """Return the results of each candidate, one value per round, in the order of the rounds.

    The order is rotated from round to round, so that no candidate always profits from what the previous one has warmed.
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
