"""Trials of other searches, from which a searcher learns before it is asked: read, told, and kept in the journal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hopsml import settings
from hopsml.errors import ArgumentError, ArgumentTypeError
from hopsml.search.contract import Config, End, Outcome, Searcher
from hopsml.search.dispatch.ledger import number_of
from hopsml.search.space.space import Searchspace

_KEY = "learn"
Learned = tuple[Config, Outcome]


def learned_from(given: Any, space: Searchspace, direction: str) -> list[Learned]:
    """What ``warm_start`` means: results, handles, URLs or ids of searches, or dicts of ``config`` and ``value``; or a list.

    Trials that the space does not hold are left out. Raises ArgumentError where none is left of something that was given.
    """
    if given is None:
        return []
    items = list(given) if isinstance(given, list | tuple) and not hasattr(given, "run_dir") else [given]
    sign = 1.0 if direction == "max" else -1.0
    found: list[Learned] = []
    for item in items:
        for row in _rows(item, space):
            value = number_of(row.get("value"))
            config = dict(row["config"])
            if space.contains(config) and value is not None:
                end = End.STOPPED if row.get("state") == "stopped" else End.COMPLETED
                found.append((config, Outcome(end, sign * value, row.get("step"))))
    if items and not found:
        raise ArgumentError(
            "warm_start: none of its trials has a value and a configuration of this search space; leave it out, or give the "
            "space the same parameters"
        )
    return found


def _rows(item: Any, space: Searchspace) -> Iterable[Mapping[str, Any]]:
    if isinstance(item, Mapping):
        if not isinstance(item.get("config"), Mapping) or "value" not in item:
            raise ArgumentTypeError(f"warm_start: {item!r:.100} has no 'config' and 'value'")
        return [item]
    if isinstance(rows := getattr(item, "rows", None), list):
        return rows
    from hopsml.experiment.searches.recorded import rows_of
    from hopsml.storage.run_dir import find

    return rows_of(find(item, settings.project_url()), space)


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
