"""Trials of other searches, from which a searcher learns before it is asked: told, and kept in the journal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from hopsml.search.contract import Config, End, Outcome, Searcher
from hopsml.search.space.space import Searchspace

_KEY = "learn"
Learned = tuple[Config, Outcome]


def tell(searcher: Searcher, learned: Sequence[Learned]) -> None:
    """Let the searcher know."""
    for config, outcome in learned:
        searcher.learn(config, outcome)


def lines_of(learned: Sequence[Learned], space: Searchspace) -> list[str]:
    """For the journal."""
    return [
        json.dumps([_KEY, space.encode(config), outcome.end.value, outcome.score, outcome.step])
        for config, outcome in learned
    ]


def others_of(lines: Iterable[str]) -> list[str]:
    """A journal's lines without those."""
    return [line for line in lines if not line.startswith(f'["{_KEY}",')]


def take_over(lines: Iterable[str], space: Searchspace) -> tuple[list[Learned], list[str]]:
    """What a journal says of such trials, and its other lines."""
    learned: list[Learned] = []
    others = []
    for line in lines:
        if line.startswith(f'["{_KEY}",'):
            _, encoded, end, score, step = json.loads(line)
            learned.append((space.decode(encoded), Outcome(End(end), score, step)))
        else:
            others.append(line)
    return learned, others
