"""What a driver does about a call that an earlier one has made: the rule for YARN's further application attempts.

YARN starts the whole script anew. Each of its calls is answered by the run that the same call made in an earlier attempt:
it goes on from there, or, where the user's own code had failed, fails again at once. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hopsml.storage import urls


@dataclass(frozen=True)
class Call:
    """What identifies a call of a verb in a script: two calls with equal fields are the same one."""

    verb: str
    function: str
    code_sha256: str
    arguments: str  # JSON, as they were recorded

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Call:
        """The call that has made a run, from the run's ``run.json``."""
        arguments = json.dumps(record.get("arguments"), sort_keys=True)
        return cls(str(record.get("verb")), str(record.get("function")), str(record.get("code_sha256")), arguments)


@dataclass(frozen=True)
class EarlierRun:
    """A run that an earlier attempt of this application, or this one, has begun."""

    url: str
    call: Call
    attempt: int  # of the application, that made it
    number: int  # the runs of an application are numbered in the order they began
    continues: str = ""  # URL of the run that it goes on with
    raised: str = ""  # the error, where the user's own code ended it


@dataclass(frozen=True)
class Begin:
    """Start a new run: no earlier attempt has made this call."""


@dataclass(frozen=True)
class Continue:
    """Continue from where ``run`` stopped; where it had finished nothing is left to do."""

    run: EarlierRun


@dataclass(frozen=True)
class RefuseAgain:
    """Refuse the call: the same code has failed in ``run``, and would fail again."""

    run: EarlierRun


Decision = Begin | Continue | RefuseAgain


def decide(call: Call, attempt: int, runs: Sequence[EarlierRun], answered: Collection[str] = ()) -> Decision:
    """What the driver of ``attempt`` does about ``call``.

    ``runs``: all of the application. ``answered``: URLs of those that this driver has refused already, for a script that
    makes the same call again. The same calls are matched in the order in which they were first made.
    """
    by_url = {run.url: run for run in runs}
    taken = {run.continues for run in runs} | set(answered)
    open_ones = [run for run in runs if run.attempt < attempt and run.call == call and run.url not in taken]
    if not open_ones:
        return Begin()
    first = min(open_ones, key=lambda run: _origin(run, by_url).number)
    return RefuseAgain(first) if first.raised else Continue(first)


def _origin(run: EarlierRun, by_url: Mapping[str, EarlierRun]) -> EarlierRun:
    """The first run of a chain of continuations."""
    while run.continues in by_url:
        run = by_url[run.continues]
    return run


def earlier(url: str, record: Mapping[str, Any], status: Mapping[str, Any] | None) -> EarlierRun:
    """The run at ``url``, from its ``run.json`` and, None before its end, its ``status.json``."""
    ended = status or {}
    return EarlierRun(
        url=url,
        call=Call.of(record),
        attempt=int(record.get("attempt", 1)),
        number=int(urls.name(url).rpartition("_")[2]),
        continues=str(record.get("continues") or ""),
        raised=str(ended.get("error", "")) if ended.get("raised") else "",
    )
