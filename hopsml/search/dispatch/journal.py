"""A search as lines of JSON: what is appended while it runs is enough to go on after the driver was killed.

    {"hopsml search": 1}                         at the begin of every session; the version of what follows
    ["ask", 0, {"lr": 0.1}, null] ...            one fact a line (ask_tell.py), in order
    {"hopsml search": 1, "state": {...}}         everything up to here; saves repeating what comes before

Who keeps the journal may add lines of its own, ``["key", ...]``, which it takes out again by ``divided``.
Lines must be on disk before the actions that came with them are carried out: then a result that anybody was told of is
never lost, and none is told twice. The last line may be torn.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hopsml.errors import ArgumentError
from hopsml.search.contract import Searcher, Stopper
from hopsml.search.dispatch.ask_tell import Fact
from hopsml.search.dispatch.dispatch import VERSION, Dispatch, check_version
from hopsml.search.dispatch.spec import SearchSpec
from hopsml.search.space.config_json import reader, to_line

_KEY = "hopsml search"


def opening() -> str:
    """The first line that a session writes: the journal's version."""
    return to_line({_KEY: VERSION})


def lines_of(facts: Iterable[Fact]) -> list[str]:
    """Facts of ``Dispatch.take_facts()`` as lines of JSON, without line ends."""
    return [to_line(list(fact)) for fact in facts]


def divided(lines: Iterable[str], *keys: str) -> tuple[list[list[Any]], list[str]]:
    """The entries that begin with one of the keys, decoded; and all other lines, as they are."""
    begins = tuple(f'["{key}",' for key in keys)
    found, others = list[list[Any]](), list[str]()
    for line in lines:
        if line.startswith(begins):
            found.append(json.loads(line))
        else:
            others.append(line)
    return found, others


def snapshot(dispatch: Dispatch) -> str:
    """The line that makes all before it needless; for searchers whose answers take long to repeat."""
    return to_line({_KEY: VERSION, "state": dispatch.state()})


def snapshot_due(since: int, at_last: int) -> bool:
    """Whether a snapshot is worth its lines: ``since`` facts after the last one, which held ``at_last``.

    As they grow with the search, they come at doubling distances: all of them together cost a constant for each fact.
    """
    return since >= max(1000, at_last)


def replay(lines: Sequence[str], spec: SearchSpec, searcher: Searcher, stopper: Stopper | None = None) -> Dispatch:
    """Rebuild a search from the lines of its journal; nothing runs. ``begin`` of what is returned continues it.

    Searcher and stopper must be new, and made as at first. Trials that had begun and not ended are begun again, and count
    as having lost their slot. Values that JSON does not know are found by their names in ``searcher.space``. Raises
    ArgumentError for a newer version, or a line in the middle that cannot be read.
    """
    entries = _entries(lines, reader(_values_of(searcher)))
    last = max((index for index, one in enumerate(entries) if isinstance(one, dict) and "state" in one), default=None)
    for entry in entries:
        if isinstance(entry, dict):
            check_version(entry.get(_KEY), "the journal of the search")
    if last is None:
        dispatch, last = Dispatch(spec, searcher, stopper), -1
    else:
        dispatch = Dispatch.restore(entries[last]["state"], spec, searcher, stopper)
    for entry in entries[last + 1 :]:
        if isinstance(entry, list):
            dispatch.repeat(entry)
    return dispatch


def _values_of(searcher: Searcher) -> list[Any]:
    """All values of the listed parameters of the searcher's space, if it has one."""
    parameters = getattr(getattr(searcher, "space", None), "parameters", {})
    return [value for parameter in parameters.values() for value in getattr(parameter, "values", ())]


def _entries(lines: Sequence[str], read: Callable[[str], Any]) -> list[Any]:
    entries = []
    for number, line in enumerate(lines, 1):
        try:
            entries.append(read(line))
        except ValueError as error:
            if number < len(lines):
                raise ArgumentError(
                    f"line {number} of the journal of the search cannot be read ({error}): it was changed or damaged; "
                    "start a new search from its finished trials"
                ) from None
    return entries
