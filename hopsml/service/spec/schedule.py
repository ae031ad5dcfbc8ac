"""Schedules of jobs: the five fields of cron, in a time zone, and which job is next, as pure functions of state and time."""

from __future__ import annotations

import datetime
import re
import zoneinfo
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import AfterValidator, WithJsonSchema

from hopsml.core.newer_python import UTC


@dataclass(frozen=True, slots=True)
class ScheduleState:
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
class DueDecision:
    """Decision of ``decide_due`` about a schedule.

    Attributes:
        after: New state of the schedule, to be stored in one transaction with the job if ``starts``.
        starts: True if a job must be started.
        cancels: True if the previous job must be cancelled.
    """

    after: ScheduleState
    starts: bool = False
    cancels: bool = False


def decide_due(table: ScheduleState, is_running: bool, following: Callable[[float], float], now: float) -> DueDecision:
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
        return DueDecision(replace(table, planned_s=following(now), looked_s=now))
    if now < table.planned_s or (is_running and table.overlap == "queue"):
        return DueDecision(table)
    next_ = replace(table, planned_s=following(now), looked_s=now, note="")
    if is_running and table.overlap == "skip":
        return DueDecision(replace(next_, note="skipped, since the previous job had not ended"))
    return DueDecision(next_, starts=True, cancels=is_running)


# Only cron's own syntax: no seconds, no @daily, and none of croniter's extensions such as R and H (random) or L (last).
_VALUE = r"([0-9]{1,2}|[A-Za-z]{3})"
_ITEM = rf"(\*|{_VALUE}(-{_VALUE})?)(/[0-9]{{1,2}})?"
_FIELD = rf"{_ITEM}(,{_ITEM})*"
SCHEDULE_PATTERN = rf"^{_FIELD}( {_FIELD}){{4}}$"
_NAMES = ("minute", "hour", "day", "month", "weekday")
_RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))  # of their numbers
_UTC = UTC
_FOLD = datetime.timedelta(hours=3)  # more than any zone's clocks are set back
_SAMPLE = datetime.datetime(2026, 1, 1, tzinfo=_UTC)  # any day: croniter searches all years of a schedule from it


def check_schedule(text: str) -> str:
    """Return the schedule unchanged, if it is valid. Raises ValueError if it is not cron syntax, or has no date."""
    from croniter import CroniterBadDateError, CroniterError, croniter

    rule = "a schedule has cron's five fields, minute, hour, day, month and weekday, one blank between: write 0 3 * * *"
    if not re.fullmatch(SCHEDULE_PATTERN, text) or "\n" in text or len(text) > 256:
        raise ValueError(rule + _strange(text))
    try:
        croniter(text, _SAMPLE).get_next(datetime.datetime)
    except CroniterBadDateError:
        raise ValueError("no day of the calendar is on this schedule: change its day or its month") from None
    except (CroniterError, ValueError, KeyError) as error:
        raise ValueError(_out_of_range(text) or f"{rule} ({error})") from None
    return text


def _out_of_range(text: str) -> str:
    """Return why the first number of a schedule that is too small or too large is invalid; "" if there is none."""
    for name, field, (least, most) in zip(_NAMES, text.split(" "), _RANGES, strict=True):
        for number in re.findall(r"(?<![/0-9])[0-9]+", field):  # not that of a step, */n
            if not least <= int(number) <= most:
                return f"{name} {number} is not in {least} to {most}; correct the {name}"
    return ""


def _strange(text: str) -> str:
    """Return the first invalid field in parentheses, for a message; "" if it cannot be determined."""
    fields = text.split(" ") if len(text) <= 256 else []
    found = (f" ({name} {field!r}: it has numbers, *, a-b, */n, commas between; months and weekdays have names, too)"
             for name, field in zip(_NAMES, fields, strict=False) if not re.fullmatch(_FIELD, field))  # fmt: skip
    return next(found, "") if len(fields) == len(_NAMES) else ""


def next_time(schedule: str, moment: datetime.datetime, zone: str = "UTC") -> datetime.datetime:
    """Return the first time of a schedule after a moment, in UTC.

    When clocks are set forward, a time in the skipped hour comes as much later. When they are set back, a schedule with
    a fixed hour comes once, at the first occurrence; one for every hour (``*``) comes in both.

    Args:
        schedule: The five fields of cron.
        moment: A time with a time zone.
        zone: Name of the schedule's time zone.

    Raises:
        ValueError: ``moment`` has no time zone.
    """
    from croniter import croniter

    if moment.tzinfo is None:
        raise ValueError(f"{moment}: a time with a zone is needed, such as datetime.now(timezone.utc)")
    place, folds = zoneinfo.ZoneInfo(zone), (0, 1) if schedule.split()[1].startswith("*") else (0,)
    begin = moment.astimezone(place).replace(tzinfo=None, fold=0) - _FOLD
    found: set[datetime.datetime] = set()
    for wall in croniter(schedule, begin).all_next(datetime.datetime):
        found |= {wall.replace(tzinfo=place, fold=fold).astimezone(_UTC) for fold in folds}
        if wall.replace(tzinfo=place).astimezone(_UTC) > moment:
            break
    return min(time for time in found if time > moment)


def next_time_s(schedule: str, zone: str, moment_s: float) -> float:
    """Return the first time of a schedule after a moment; both are in seconds since 1970."""
    return next_time(schedule, datetime.datetime.fromtimestamp(moment_s, _UTC), zone).timestamp()


def check_zone(name: str) -> str:
    """Return the name of a time zone, if this machine knows it. Raises ValueError."""
    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError("no time zone of this name is known here: write Europe/Berlin, or UTC") from None
    return name


Schedule = Annotated[
    str, AfterValidator(check_schedule), WithJsonSchema({"type": "string", "pattern": SCHEDULE_PATTERN})
]
Overlap = Literal["skip", "queue", "cancel"]
Zone = Annotated[str, AfterValidator(check_zone)]
