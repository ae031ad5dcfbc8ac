"""When a schedule's next job is due: pure functions of how the schedule stands and the time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Timetable:
    """``planned_s``: its next time; ``looked_s``: when that was computed; ``note``: what came of the last time."""

    planned_s: float
    looked_s: float
    overlap: str = "skip"  # queue, cancel: as the job file has it
    note: str = ""


@dataclass(frozen=True, slots=True)
class Due:
    """``after``: what is to be stored, in one transaction with the job, where ``starts``; ``cancels``: the one before."""

    after: Timetable
    starts: bool = False
    cancels: bool = False


def due(table: Timetable, is_running: bool, following: Callable[[float], float], now: float) -> Due:
    """What is to be done now. ``is_running``: whether the job before is not over; ``following``: the first time after one.

    Of times that were missed one is made up for. Where the clock was put back, it is planned anew: nothing waits for
    a time that is years ahead, and whoever stores the job sees to it that no planned time has two.
    """
    if now < table.looked_s:
        return Due(replace(table, planned_s=following(now), looked_s=now))
    if now < table.planned_s or (is_running and table.overlap == "queue"):
        return Due(table)
    next_ = replace(table, planned_s=following(now), looked_s=now, note="")
    if is_running and table.overlap == "skip":
        return Due(replace(next_, note="left out: the job before was not over"))
    return Due(next_, starts=True, cancels=is_running)
