"""Decisions on the next job of a schedule, as pure functions of the schedule's state and the time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Timetable:
    """State of a schedule.

    Attributes:
        planned_s: Next planned time, in seconds since 1970.
        looked_s: Time at which ``planned_s`` was computed.
        overlap: Action if the previous job has not ended: skip, queue or cancel.
        note: Outcome of the last planned time.
    """

    planned_s: float
    looked_s: float
    overlap: str = "skip"
    note: str = ""


@dataclass(frozen=True, slots=True)
class Due:
    """Decision of ``due`` about a schedule.

    Attributes:
        after: New state of the schedule, to be stored in one transaction with the job if ``starts``.
        starts: True if a job must be started.
        cancels: True if the previous job must be cancelled.
    """

    after: Timetable
    starts: bool = False
    cancels: bool = False


def due(table: Timetable, is_running: bool, following: Callable[[float], float], now: float) -> Due:
    """Decide what a schedule has to do now.

    Of several missed times, one is made up for. If the clock was set back, the next time is planned again, so that no
    schedule waits for a time that is years ahead; the code that stores the job ensures that no planned time starts two
    jobs.

    Args:
        table: State of the schedule.
        is_running: True if the previous job has not ended.
        following: Function that returns the first planned time after a given time.
        now: Time in seconds since 1970.
    """
    if now < table.looked_s:
        return Due(replace(table, planned_s=following(now), looked_s=now))
    if now < table.planned_s or (is_running and table.overlap == "queue"):
        return Due(table)
    next_ = replace(table, planned_s=following(now), looked_s=now, note="")
    if is_running and table.overlap == "skip":
        return Due(replace(next_, note="left out: the job before was not over"))
    return Due(next_, starts=True, cancels=is_running)
