"""Tests of a schedule's due times with clocks that stop, jump and go back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsml.service.spec.schedule import ScheduleState, decide_due

pytestmark = pytest.mark.fast
EVERY = 60.0


def following(moment: float) -> float:
    """Return the next full minute."""
    return (moment // EVERY + 1) * EVERY


def table(**more: object) -> ScheduleState:
    return replace(ScheduleState(120.0, 60.0), **more)  # type: ignore[arg-type]


def test_each_planned_time_starts_once_and_missed_times_start_one_job() -> None:
    assert decide_due(table(), False, following, 119.9).starts is False
    decided = decide_due(table(), False, following, 120.0)
    assert decided.starts and decided.after == ScheduleState(180.0, 120.0)
    late = decide_due(table(), False, following, 120.0 + 1000 * EVERY)
    assert late.starts and late.after.planned_s == 120.0 + 1001 * EVERY


def test_overlap_rule_decides_if_the_previous_job_has_not_ended() -> None:
    left_out = decide_due(table(), True, following, 130.0)
    assert not left_out.starts and "skipped" in left_out.after.note and left_out.after.planned_s == 180.0
    waits = decide_due(table(overlap="queue"), True, following, 130.0)
    assert not waits.starts and waits.after == table(overlap="queue")
    assert decide_due(waits.after, False, following, 400.0).starts, "as soon as it is over"
    ends = decide_due(table(overlap="cancel"), True, following, 130.0)
    assert ends.starts and ends.cancels
    assert not decide_due(table(overlap="cancel"), False, following, 130.0).cancels


def test_clock_that_was_years_ahead_does_not_stop_the_schedule() -> None:
    ahead = decide_due(table(), False, following, 1e9)
    back = decide_due(ahead.after, False, following, 200.0)
    assert not back.starts and back.after.planned_s == 240.0
    assert decide_due(back.after, False, following, 241.0).starts


def test_note_describes_only_the_latest_planned_time() -> None:
    left_out = decide_due(table(), True, following, 130.0).after
    assert left_out == ScheduleState(180.0, 130.0, note="skipped, since the previous job had not ended")
    assert decide_due(left_out, False, following, 180.0).after == ScheduleState(240.0, 180.0)
    assert decide_due(left_out, False, following, 100.0).after == replace(left_out, planned_s=120.0, looked_s=100.0)


def test_schedule_polled_at_its_due_time_starts_and_plans_the_next_time() -> None:
    decided = decide_due(ScheduleState(60.0, 60.0), False, following, 60.0)
    assert decided.starts and decided.after.planned_s == 120.0


@given(st.lists(st.floats(-500, 500), max_size=40), st.sampled_from(["skip", "queue", "cancel"]), st.booleans())
def test_clock_jumps_never_start_a_job_early_or_lose_times_for_long(
    steps: list[float], overlap: str, running: bool
) -> None:
    now, one = 1000.0, ScheduleState(following(1000.0), 1000.0, overlap)
    for step in steps:
        now = max(0.0, now + step)
        decided = decide_due(one, running, following, now)
        assert not decided.starts or one.planned_s <= now
        assert not decided.starts or not running or overlap == "cancel"
        one = decided.after
        assert one.looked_s <= now and (one.planned_s <= now + EVERY)
        assert one.planned_s > now or (running and overlap == "queue")
