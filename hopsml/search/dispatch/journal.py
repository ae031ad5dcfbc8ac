"""Event log of a search as lines of JSON, from which it is restored after the driver was killed.

    {"hopsml search": 1}                         at the begin of every session; the version of the lines that follow
    ["ask", 0, {"lr": 0.1}, null] ...            one fact per line (ask_tell.py), in order
    {"hopsml search": 1, "state": {...}}         snapshot of all before it, so that it need not be replayed

The writer of the log may add lines ``["key", ...]`` with other keys, which it removes again by ``separate_entries``. Lines
must be on disk before the actions that came with them are carried out: then a result that was announced is never lost, and
none is announced twice. The last line may be torn.

``SearchSnapshot`` is an immutable copy of a search for display, with an estimate of its remaining time.
"""

from __future__ import annotations

import bisect
import contextlib
import heapq
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hopsml.core import decoding
from hopsml.core.states import Lifecycle
from hopsml.errors import ArgumentError
from hopsml.search.contract import Searcher, Stopper
from hopsml.search.dispatch.ask_tell import Fact
from hopsml.search.dispatch.dispatch import VERSION, Dispatch, check_version
from hopsml.search.dispatch.spec import SearchSpec
from hopsml.search.space.parameter import line_parser, to_line

SIMULATED = 1_000  # waiting trials that are simulated; further ones are spread evenly over the places


@dataclass
class RunningTrial:
    """State of a trial that is being run."""

    number: int
    trial_id: str
    config: dict[str, Any]
    place: str  # the lane, or the number of workers
    began: float  # seconds since 1970
    step: int | None = None
    value: float | None = None
    curve: list[tuple[int, float]] = field(default_factory=list)


@dataclass(frozen=True)
class SearchSnapshot:
    """State of a search at one moment.

    ``best`` is its row of the result table, None without any; times are seconds since 1970.
    """

    run_id: str
    name: str
    run_dir: str
    began: float
    now: float
    counts: dict[str, int]
    planned: int | None  # total number of trials
    best: dict[str, Any] | None
    direction: str
    metric: str
    running: tuple[RunningTrial, ...]
    executors: int  # number of slots of the search
    busy: int
    deadline_at: float | None
    took: tuple[float, ...]  # durations of the newest ended trials, in seconds
    waiting: str  # the coordinator's message about missing executors
    notes: tuple[str, ...]
    improvements: tuple[tuple[int, float], ...]  # trial, best value so far
    ended: float | None
    state: Lifecycle
    error: BaseException | None

    @property
    def done(self) -> int:
        """Number of trials that have ended: completed, stopped or failed."""
        return sum(self.counts.get(name, 0) for name in ("completed", "stopped", "failed"))

    def outlook(self) -> Outlook | None:
        """Return the estimate for all planned trials, regardless of the deadline; None if it is unknown."""
        if self.planned is None:
            return None
        ages = [max(0.0, self.now - trial.began) for trial in self.running]
        waiting = max(0, self.planned - self.done - len(ages))
        return estimate_outlook(self.took, ages, waiting, len(ages) or self.executors, self.done)

    def seconds_left(self) -> float | None:
        """Return the seconds until the search ends, by estimate or deadline, whichever is earlier; None if unknown."""
        outlook = self.outlook()
        times = [] if self.deadline_at is None else [max(0.0, self.deadline_at - self.now)]
        times += [] if outlook is None else [outlook.seconds]
        return min(times) if times else None


@dataclass(frozen=True)
class Outlook:
    """Estimate of a search: seconds until the last trial has ended, and the share of all work done (0 to 1)."""

    seconds: float
    share: float


class Lifetimes:
    """Distribution of trial durations, estimated from ended and running trials.

    Trials that still run count too: they have lasted at least as long as they have run. Without them the short ones,
    which end first, and those that a stopper ended would bias the estimate (Kaplan and Meier 1958, "Nonparametric
    estimation from incomplete observations"). Beyond the longest known trial they are assumed to end at the average
    rate so far.

    Args:
        ended: durations of ended trials, in seconds.
        running: seconds that the running trials have run so far.
    """

    def __init__(self, ended: Sequence[float], running: Sequence[float]) -> None:
        moments = sorted([(seconds, 0) for seconds in ended] + [(seconds, 1) for seconds in running])
        self._times, self._shares = [0.0], [1.0]  # share of trials that last longer than each time
        for left, (seconds, runs) in zip(range(len(moments), 0, -1), moments, strict=True):
            if not runs:
                self._times.append(seconds)
                self._shares.append(self._shares[-1] * (1 - 1 / left))
        self._longest = moments[-1][0] if moments else 0.0
        share = self._shares[-1]
        self._tail = self._longest / -math.log(share) if 0.0 < share < 1.0 else 0.0  # mean time beyond the longest

    def rest(self, age: float) -> float:
        """Return the expected further seconds of a trial that has run for ``age`` seconds (mean)."""
        at = bisect.bisect_right(self._times, age) - 1
        if not self._shares[at]:
            return 0.0
        ends = [*self._times[at + 1 :], max(self._longest, age)]
        begins = [age, *self._times[at + 1 :]]
        area = sum(
            share * max(0.0, end - begin) for share, begin, end in zip(self._shares[at:], begins, ends, strict=True)
        )
        return (area + self._shares[-1] * self._tail) / self._shares[at]


def estimate_outlook(
    ended: Sequence[float], running: Sequence[float], waiting: int, places: int, done: int
) -> Outlook | None:
    """Return the estimate for a search; None before a trial has ended.

    Args:
        ended: seconds that trials took, as for ``Lifetimes``; may be the newest of the ``done`` ones alone.
        running: seconds that the running trials have run so far.
        waiting: number of trials that have not begun.
        places: number of trials that can run at the same time.
        done: number of trials that have ended.
    """
    if not ended or places < 1:
        return None
    lifetimes = Lifetimes(ended, running)
    rests = [lifetimes.rest(age) for age in running]
    usual = lifetimes.rest(0.0)
    free = sorted(rests + [0.0] * (places - len(rests)))
    heapq.heapify(free)
    ends = max(free, default=0.0)
    for _ in range(min(waiting, SIMULATED)):
        end = heapq.heappop(free) + usual
        heapq.heappush(free, end)
        ends = max(ends, end)
    ends += max(0, waiting - SIMULATED) * usual / places
    begun = sum(age / (age + rest) if age + rest > 0 else 0.0 for age, rest in zip(running, rests, strict=True))
    return Outlook(ends, (done + begun) / max(1, done + len(running) + waiting))


_KEY = "hopsml search"


def version_line() -> str:
    """Return the first line that a session writes: the log's version."""
    return to_line({_KEY: VERSION})


def fact_lines(facts: Iterable[Fact]) -> list[str]:
    """Return facts of ``Dispatch.take_facts()`` as lines of JSON, without line ends."""
    return [to_line(list(fact)) for fact in facts]


def readable() -> contextlib.AbstractContextManager[None]:
    """Return a context in which errors of entries that are JSON, but no events, become ArgumentError."""
    remedy = "it was changed or damaged: start a new search from its finished trials"
    return decoding.understood("the lines of the journal of the search are", remedy)


def separate_entries(lines: Iterable[str], *keys: str) -> tuple[list[list[Any]], list[str]]:
    """Separate the entries that begin with one of the keys from all other lines.

    Returns:
        The entries with these keys, decoded; all other lines, unchanged.

    Raises:
        ArgumentError: an entry is not JSON.
    """
    begins = tuple(f'["{key}",' for key in keys)
    found, others = list[list[Any]](), list[str]()
    for line in lines:
        if line.startswith(begins):
            with readable():
                found.append(json.loads(line))
        else:
            others.append(line)
    return found, others


def snapshot_line(dispatch: Dispatch) -> str:
    """Return a line with the whole state, which replaces all lines before it.

    For searchers whose calls take long to replay.
    """
    return to_line({_KEY: VERSION, "state": dispatch.state()})


def is_snapshot_due(since: int, at_last: int) -> bool:
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
        ArgumentError: a newer version, a line other than the last one cannot be read, or an entry is no event.
    """
    entries = _entries(lines, line_parser(_values_of(searcher)))
    last = max((index for index, one in enumerate(entries) if isinstance(one, dict) and "state" in one), default=None)
    for entry in entries:
        if isinstance(entry, dict):
            check_version(entry.get(_KEY), "the journal of the search")
    with readable():
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
