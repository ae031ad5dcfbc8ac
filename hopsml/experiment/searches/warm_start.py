"""What ``warm_start`` of a search means: the trials of other searches from which its searcher learns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hopsml import settings
from hopsml.errors import ArgumentError, ArgumentTypeError
from hopsml.experiment.searches.reader import rows_of
from hopsml.experiment.searches.recorded import Learned
from hopsml.search.contract import End, Outcome
from hopsml.search.metric import finite
from hopsml.search.space.space import Searchspace
from hopsml.storage.run_dir import find


def learned_from(given: Any, space: Searchspace, direction: str) -> list[Learned]:
    """The trials of results, handles, URLs or ids of searches, or dicts of ``config`` and ``value``; of one, or of a list.

    Trials that the space does not hold are left out. Raises ArgumentError where none is left of something that was given.
    """
    if given is None:
        return []
    items = list(given) if isinstance(given, list | tuple) and not hasattr(given, "run_dir") else [given]
    sign = 1.0 if direction == "max" else -1.0
    found: list[Learned] = []
    for item in items:
        for row in _rows(item, space):
            value = finite(row.get("value"))
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
    return rows_of(find(item, settings.project_url()), space)
