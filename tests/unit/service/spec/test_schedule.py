"""Tests of cron's five fields."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsml.service.spec import schedule

pytestmark = pytest.mark.fast
UTC = datetime.UTC


def test_following_time_is_in_utc_and_needs_a_time_zone() -> None:
    berlin = datetime.timezone(datetime.timedelta(hours=1))
    moment = datetime.datetime(2026, 11, 27, 3, 59, tzinfo=berlin)  # 2:59 in UTC
    assert schedule.next_time("0 3 * * *", moment) == datetime.datetime(2026, 11, 27, 3, 0, tzinfo=UTC)
    assert schedule.next_time("0 0 29 2 *", moment) == datetime.datetime(2028, 2, 29, tzinfo=UTC)
    with pytest.raises(ValueError, match="a time with a zone is needed"):
        schedule.next_time("0 3 * * *", datetime.datetime(2026, 1, 1))


@pytest.mark.parametrize("text", ["*/5 * * * *", "0 3 * * mon-fri", "0 0 1,15 JAN *", "0 0 * * 7"])
def test_valid_cron_expression_is_accepted(text: str) -> None:
    assert schedule.check_schedule(text) == text


@pytest.mark.parametrize(
    "text",
    [
        *("", "* * * *", "H * * * *", "@hourly", "* * * * *\n", "*  * * * *", "a b c d e"),
        *("R * * * *", "R(0-9) * * * *", "* * L * *", "* * * * L5", "* * * * 5#2", "* * ? * *", "* * * * * 2027"),
        *("@reboot", "H(0-30)/5 * * * *", "* * 15W * *", "*/5/2 * * * *", "*-5 * * * *"),
    ],
)
def test_invalid_cron_expression_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="cron's five fields"):
        schedule.check_schedule(text)


def test_invalid_cron_field_is_named() -> None:
    with pytest.raises(ValueError, match=r"minute, hour, day, month and weekday.* \(hour 'R': it has numbers"):
        schedule.check_schedule("0 R * * *")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("61 * * * *", "minute 61 is not in 0 to 59; correct the minute"),
        ("0 5-24 * * *", "hour 24 is not in 0 to 23; correct the hour"),
        ("*/5 3 0 * *", "day 0 is not in 1 to 31; correct the day"),
        ("0 3 1,2 13 *", "month 13 is not in 1 to 12; correct the month"),
        ("0 3 * * 8", "weekday 8 is not in 0 to 7; correct the weekday"),
    ],
)
def test_message_names_the_number_that_is_out_of_range(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        schedule.check_schedule(text)


def times(text: str, first: datetime.datetime, count: int) -> list[str]:
    """Return the next ``count`` times of a schedule in Berlin, in UTC."""
    found = []
    for _ in range(count):
        first = schedule.next_time(text, first, "Europe/Berlin")
        found.append(f"{first:%d %H:%M}")
    return found


def test_skipped_local_time_is_planned_later_when_clocks_go_forward() -> None:
    before = datetime.datetime(2026, 3, 27, 12, tzinfo=UTC)
    assert times("30 2 * * *", before, 3) == ["28 01:30", "29 01:30", "30 00:30"]
    assert times("0 * * * *", datetime.datetime(2026, 3, 28, 23, 30, tzinfo=UTC), 4) == [
        "29 00:00", "29 01:00", "29 02:00", "29 03:00",
    ]  # fmt: skip


def test_fixed_hour_is_planned_once_and_hourly_twice_when_clocks_go_back() -> None:
    before = datetime.datetime(2026, 10, 24, 12, tzinfo=UTC)
    assert times("30 2 * * *", before, 2) == ["25 00:30", "26 01:30"]
    assert times("30 * * * *", datetime.datetime(2026, 10, 24, 23, tzinfo=UTC), 4) == [
        "24 23:30", "25 00:30", "25 01:30", "25 02:30",
    ]  # fmt: skip


@given(
    st.sampled_from(["*/7 * * * *", "30 2 * * *", "0 */2 * * *", "15 1,2,3 * * *", "0 0 1 * *"]),
    st.datetimes(datetime.datetime(2026, 1, 1), datetime.datetime(2027, 1, 1)),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata"]),
)
@settings(deadline=None, max_examples=60)
def test_following_time_has_no_planned_time_before_it(text: str, moment: datetime.datetime, zone: str) -> None:
    first = moment.replace(tzinfo=UTC)
    found = schedule.next_time(text, first, zone)
    assert found > first
    middle = first + (found - first) / 2
    assert schedule.next_time(text, middle, zone) == found


def test_unknown_time_zone_is_refused() -> None:
    assert schedule.check_zone("Europe/Berlin") == "Europe/Berlin"
    for name in ("Berlin", "", "../etc/passwd"):
        with pytest.raises(ValueError, match="write Europe/Berlin"):
            schedule.check_zone(name)
