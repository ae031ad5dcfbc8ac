"""Event log of a search as lines of JSON, from which it is restored after the driver was killed.

    {"hopsml search": 1}                         at the begin of every session; the version of the lines that follow
    ["ask", 0, {"lr": 0.1}, null] ...            one fact per line (ask_tell.py), in order
    {"hopsml search": 1, "state": {...}}         snapshot of all before it, so that it need not be replayed

The writer of the log may add lines ``["key", ...]`` with other keys, which it removes again by ``divided``. Lines must
be on disk before the actions that came with them are carried out: then a result that was announced is never lost, and
none is announced twice. The last line may be torn.
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
    """Return the first line that a session writes: the log's version."""
    return to_line({_KEY: VERSION})


def lines_of(facts: Iterable[Fact]) -> list[str]:
    """Return facts of ``Dispatch.take_facts()`` as lines of JSON, without line ends."""
    return [to_line(list(fact)) for fact in facts]


def divided(lines: Iterable[str], *keys: str) -> tuple[list[list[Any]], list[str]]:
    """Separate the entries that begin with one of the keys from all other lines.

    Returns:
        The entries with these keys, decoded; all other lines, unchanged.
    """
    begins = tuple(f'["{key}",' for key in keys)
    found, others = list[list[Any]](), list[str]()
    for line in lines:
        if line.startswith(begins):
            found.append(json.loads(line))
        else:
            others.append(line)
    return found, others


def snapshot(dispatch: Dispatch) -> str:
    """Return a line with the whole state, which replaces all lines before it.

    For searchers whose calls take long to replay.
    """
    return to_line({_KEY: VERSION, "state": dispatch.state()})


def snapshot_due(since: int, at_last: int) -> bool:
    """Return True if a snapshot is worth its size.

    As snapshots grow with the search, they are written at doubling distances: all of them together cost a constant per
    fact.

    Args:
        since: number of facts after the last snapshot.
        at_last: number of facts that the last snapshot covered.
    """
    return since >= max(1000, at_last)


def replay(lines: Sequence[str], spec: SearchSpec, searcher: Searcher, stopper: Stopper | None = None) -> Dispatch:
    """Rebuild a search from the lines of its event log; nothing runs.

    ``begin`` of the returned dispatch continues the search. Trials that had begun and not ended begin again, and count
    as having lost their slot. Values that JSON does not support are resolved by their names in ``searcher.space``.

    Args:
        lines: the lines of the log.
        spec: specification of the search.
        searcher: new searcher, constructed as at first.
        stopper: new stopper, constructed as at first.

    Raises:
        ArgumentError: a newer version, or a line other than the last one cannot be read.
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
    """Return all values of the listed parameters of the searcher's space, if it has one."""
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
