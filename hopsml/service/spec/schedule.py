"""When a job is started by itself: cron's five fields, in UTC."""

from __future__ import annotations

import datetime
import re
from typing import Annotated

from pydantic import AfterValidator, WithJsonSchema

_FIELD = r"[0-9A-Za-z*,/-]+"
SCHEDULE_PATTERN = rf"^{_FIELD}( {_FIELD}){{4}}$"  # no seconds, no @daily, no random "H"
_UTC = datetime.timezone.utc
_SAMPLE = datetime.datetime(2026, 1, 1, tzinfo=_UTC)  # any day: all of a schedule's years are looked at from it


def check(text: str) -> str:
    """The schedule itself. Raises ValueError where it is not cron's five fields, or never comes."""
    from croniter import CroniterBadDateError, CroniterError, croniter

    rule = "a schedule has cron's five fields, minute, hour, day, month and weekday, one blank between: write 0 3 * * *"
    if not re.fullmatch(SCHEDULE_PATTERN, text) or "\n" in text or len(text) > 256:
        raise ValueError(rule)
    try:
        croniter(text, _SAMPLE).get_next(datetime.datetime)
    except CroniterBadDateError:
        raise ValueError("no day of the calendar is on this schedule: change its day or its month") from None
    except (CroniterError, ValueError, KeyError) as error:
        raise ValueError(f"{rule} ({error})") from None
    return text


def following(schedule: str, moment: datetime.datetime) -> datetime.datetime:
    """The first time on the schedule after ``moment``, in UTC. ``moment`` has a time zone; ValueError where it has none."""
    from croniter import croniter

    if moment.tzinfo is None:
        raise ValueError(f"{moment}: a time with a zone is needed, such as datetime.now(timezone.utc)")
    found: datetime.datetime = croniter(schedule, moment.astimezone(_UTC)).get_next(datetime.datetime)
    return found


Schedule = Annotated[str, AfterValidator(check), WithJsonSchema({"type": "string", "pattern": SCHEDULE_PATTERN})]
