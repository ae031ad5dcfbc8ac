"""Cron's five fields."""

from __future__ import annotations

import datetime

import pytest

from hopsml.service.spec import schedule

pytestmark = pytest.mark.fast
UTC = datetime.timezone.utc


def test_the_next_time_is_told_in_utc() -> None:
    berlin = datetime.timezone(datetime.timedelta(hours=1))
    moment = datetime.datetime(2026, 11, 27, 3, 59, tzinfo=berlin)  # 2:59 in UTC
    assert schedule.following("0 3 * * *", moment) == datetime.datetime(2026, 11, 27, 3, 0, tzinfo=UTC)
    assert schedule.following("0 0 29 2 *", moment) == datetime.datetime(2028, 2, 29, tzinfo=UTC)
    with pytest.raises(ValueError, match="a time with a zone is needed"):
        schedule.following("0 3 * * *", datetime.datetime(2026, 1, 1))


@pytest.mark.parametrize("text", ["*/5 * * * *", "0 3 * * mon-fri", "0 0 1,15 JAN *", "0 0 * * 7"])
def test_what_is_one(text: str) -> None:
    assert schedule.check(text) == text


@pytest.mark.parametrize(
    "text", ["", "* * * *", "H * * * *", "@hourly", "61 * * * *", "* * * * *\n", "*  * * * *", "a b c d e"]
)
def test_what_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="cron's five fields"):
        schedule.check(text)
