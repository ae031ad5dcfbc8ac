"""Tests of a schedule's due times with clocks that stop, jump and go back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsml.service.spec.schedule import Timetable, due

pytestmark = pytest.mark.fast
EVERY = 60.0


def following(moment: float) -> float:
    """Each full minute."""
    return (moment // EVERY + 1) * EVERY


def table(**more: object) -> Timetable:
    return replace(Timetable(120.0, 60.0), **more)  # type: ignore[arg-type]


def test_one_a_time_and_of_those_missed_one() -> None:
    assert due(table(), False, following, 119.9).starts is False
    decided = due(table(), False, following, 120.0)
    assert decided.starts and decided.after == Timetable(180.0, 120.0)
    late = due(table(), False, following, 120.0 + 1000 * EVERY)
    assert late.starts and late.after.planned_s == 120.0 + 1001 * EVERY


def test_where_the_one_before_is_not_over() -> None:
    left_out = due(table(), True, following, 130.0)
    assert not left_out.starts and "skipped" in left_out.after.note and left_out.after.planned_s == 180.0
    waits = due(table(overlap="queue"), True, following, 130.0)
    assert not waits.starts and waits.after == table(overlap="queue")
    assert due(waits.after, False, following, 400.0).starts, "as soon as it is over"
    ends = due(table(overlap="cancel"), True, following, 130.0)
    assert ends.starts and ends.cancels
    assert not due(table(overlap="cancel"), False, following, 130.0).cancels


def test_a_clock_that_was_years_ahead_does_not_stop_it() -> None:
    ahead = due(table(), False, following, 1e9)
    back = due(ahead.after, False, following, 200.0)
    assert not back.starts and back.after.planned_s == 240.0
    assert due(back.after, False, following, 241.0).starts


def test_a_note_is_that_of_the_last_time_alone() -> None:
    left_out = due(table(), True, following, 130.0).after
    assert left_out == Timetable(180.0, 130.0, note="skipped, since the previous job had not ended")
    assert due(left_out, False, following, 180.0).after == Timetable(240.0, 180.0)
    assert due(left_out, False, following, 100.0).after == replace(left_out, planned_s=120.0, looked_s=100.0)


def test_a_schedule_that_was_looked_at_just_now_is_not_planned_anew() -> None:
    decided = due(Timetable(60.0, 60.0), False, following, 60.0)
    assert decided.starts and decided.after.planned_s == 120.0


@given(st.lists(st.floats(-500, 500), max_size=40), st.sampled_from(["skip", "queue", "cancel"]), st.booleans())
def test_whatever_the_clock_does_no_planned_time_comes_early_and_none_is_lost_for_long(
    steps: list[float], overlap: str, running: bool
) -> None:
    now, one = 1000.0, Timetable(following(1000.0), 1000.0, overlap)
    for step in steps:
        now = max(0.0, now + step)
        decided = due(one, running, following, now)
        assert not decided.starts or one.planned_s <= now
        assert not decided.starts or not running or overlap == "cancel"
        one = decided.after
        assert one.looked_s <= now and (one.planned_s <= now + EVERY)
        assert one.planned_s > now or (running and overlap == "queue")
