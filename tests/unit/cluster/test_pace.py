"""Tests of progress of a generation (slow members, hangs) and of members whose nodes leave."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsml.cluster.gang.pace import AT_ONCE_S, RESERVE_STEPS, RESERVE_WRITES, Drains, Pace, seconds_before_pause


@settings(deadline=None)
@given(st.floats(0.0, 1e4), st.floats(0.0, 1e3), st.floats(0.0, 1e3))
def test_training_time_of_a_draining_member_leaves_a_reserve(time_s: float, step_s: float, write_s: float) -> None:
    training_s = seconds_before_pause(time_s, step_s, write_s)
    reserve = max(RESERVE_STEPS * step_s, RESERVE_WRITES * write_s, min(10.0, time_s / 2))
    assert training_s == 0.0 or (time_s > AT_ONCE_S and 0.0 <= training_s <= time_s - reserve)
    assert training_s <= seconds_before_pause(time_s + 1.0, step_s, write_s)


@pytest.mark.parametrize(
    ("time_s", "step_s", "write_s", "training_s"),
    [(5.0, 0.0, 0.0, 0.0), (6.0, 0.0, 0.0, 3.0), (40.0, 0.0, 0.0, 30.0), (40.0, 5.0, 0.0, 20.0), (40.0, 0.0, 8.0, 24.0),
     (6.0, 2.0, 0.0, 0.0), (float("inf"), 1.0, 1.0, float("inf"))],
)  # fmt: skip
def test_training_time_of_a_draining_member_follows_from_step_and_write_time(
    time_s: float, step_s: float, write_s: float, training_s: float
) -> None:
    assert seconds_before_pause(time_s, step_s, write_s) == training_s


def test_long_steps_and_checkpoints_make_draining_members_pause_earlier() -> None:
    drains = Drains()
    drains.record_warning("a", 100.0, 40.0)
    assert not drains.must_pause(["a"], 119.9, 5.0) and drains.must_pause(["a"], 120.0, 5.0)
    drains.record_checkpoint(3, 8.0, leaves=False)
    drains.record_checkpoint(3, 1.0, leaves=False)
    drains.record_checkpoint(2, 1.0, leaves=False)
    assert not drains.must_pause(["a"], 123.9, 0.0) and drains.must_pause(["b", "a"], 124.0, 0.0)
    assert (drains.stored, drains.handed_over) == (3, -1) and drains.is_stored(3) and not drains.is_stored(4)


def test_earliest_deadline_of_several_warnings_counts() -> None:
    drains = Drains()
    drains.record_warning("a", 0.0, 100.0)
    drains.record_warning("a", 94.0, 6.0)
    assert not drains.must_pause(["a"], 89.9, 0.0) and drains.must_pause(["a"], 90.0, 0.0)
    drains.record_warning("a", 10.0, 20.0)
    drains.record_warning("a", 11.0, 300.0)
    assert not drains.must_pause(["a"], 19.9, 0.0) and drains.must_pause(["a"], 20.0, 0.0)
    assert not drains.must_pause(["b"], 1e9, 0.0)
    drains.forget("a")
    drains.forget("nobody")
    assert not drains.must_pause(["a"], 1e9, 0.0)


def test_commit_held_only_by_draining_members_is_stored_by_the_first_of_them() -> None:
    assert Drains().request_storing_agent({}, ["a"], once=False) is None
    assert Drains().request_storing_agent({"a": -1}, ["a"], once=False) is None
    assert Drains().request_storing_agent({"a": 0}, ["a"], once=False) == "a"
    assert Drains().request_storing_agent({"a": 5, "b": 5}, ["a"], once=False) is None
    assert Drains().request_storing_agent({"b": 3, "a": 5, "c": 5}, ["a", "c"], once=False) == "a"
    assert Drains().request_storing_agent({"b": 3, "a": 5}, ["a"], once=True) is None  # b is about to hold it as well
    assert Drains().request_storing_agent({"b": 3, "a": 5}, ["a", "b"], once=True) == "a"
    assert Drains(stored=5).request_storing_agent({"a": 5}, ["a"], once=False) is None
    assert Drains(stored=4).request_storing_agent({"a": 5}, ["a"], once=False) == "a"


def test_checkpoint_is_requested_once_while_training_and_for_each_commit_when_paused() -> None:
    drains = Drains()
    assert drains.request_storing_agent({"a": 5, "b": 5}, ["a", "b"], once=True) == "a"
    assert drains.request_storing_agent({"a": 6, "b": 6}, ["a", "b"], once=True) is None
    assert drains.request_storing_agent({"a": 6, "b": 6}, ["a", "b"], once=False) == "a"
    assert drains.request_storing_agent({"a": 6, "b": 6}, ["a", "b"], once=False) is None
    assert drains.request_storing_agent({"b": 6}, ["b"], once=True) == "b", "a is gone"
    drains.forget("b")
    assert drains.request_storing_agent({"b": 6}, ["b"], once=False) == "b"
    drains.record_checkpoint(6, 0.1, leaves=True)
    assert drains.request_storing_agent({"b": 6}, ["b"], once=False) is None and drains.handed_over == 6
    drains.record_checkpoint(5, 0.1, leaves=True)
    assert drains.handed_over == 6


pytestmark = pytest.mark.fast


def pace_of_steps(*times: float, start_s: float = 0.0, **other: Any) -> Pace:
    """One member, which has made a step at each of these times."""
    pace = Pace(start_s, **other)
    for step, at in enumerate(times):
        pace.record_step("a", step, False, at, 0.0)
    return pace


@pytest.mark.parametrize(
    ("pace", "limit_s"),
    [
        (Pace(0.0), 600.0),  # compilation precedes the first step
        (pace_of_steps(5.0), 600.0),  # the step time is unknown after one report
        (pace_of_steps(5.0, 6.0), 30.0),
        (pace_of_steps(5.0, 8.0), 30.0),
        (pace_of_steps(5.0, 8.5), 35.0),  # ten usual steps
        (pace_of_steps(5.0, 8.5, timeout_s=4.0), 4.0),
        (Pace(0.0, timeout_s=4.0), 4.0),
        (Pace(0.0, first_before_s=3.0), 60.0),
        (Pace(0.0, first_before_s=20.0), 200.0),
        (Pace(0.0, first_before_s=61.0), 600.0),
        (pace_of_steps(5.0, 8.5, first_before_s=20.0), 35.0),
    ],
)
def test_limit_without_a_step_follows_from_earlier_steps(pace: Pace, limit_s: float) -> None:
    assert pace.limit_s() == limit_s


def test_usual_step_time_is_a_moving_average() -> None:
    assert pace_of_steps(0.0, 10.0).usual_s == 10.0 and pace_of_steps(0.0, 0.25).usual_s == 0.25
    assert pace_of_steps(5.0, 4.0).usual_s == 0.0  # a delayed report of another member
    assert pace_of_steps(0.0, 10.0, 15.0).usual_s == pytest.approx(0.8 * 10.0 + 0.2 * 5.0)
    several = pace_of_steps(0.0)
    several.record_step("a", 4, False, 20.0, 0.0)
    assert several.usual_s == 5.0


def test_pace_hangs_only_beyond_the_limit() -> None:
    pace = pace_of_steps(100.0, start_s=40.0)
    assert not pace.hangs(700.0) and pace.hangs(700.1)
    beginning = Pace(40.0, timeout_s=5.0)
    assert not beginning.hangs(45.0) and beginning.hangs(45.1)
    pace.record_step("a", 1, False, 104.0, 2.0)  # two seconds ago
    assert not pace.hangs(132.0) and pace.hangs(132.1)
    pace.record_step("b", 1, False, 131.0, 0.0)  # no further than the furthest
    assert pace.hangs(132.1)


def test_waits_for_storage_since_the_last_step_do_not_count() -> None:
    pace = pace_of_steps(5.0, 12.0, 13.0, start_s=2.0, timeout_s=9.0)
    pace.record_storage_wait("a", 4.0)
    pace.record_storage_wait("b", 30.0)  # the longest counts: both have waited at the same time
    assert not pace.hangs(13.0 + 39.0) and pace.hangs(13.0 + 39.1)
    pace.record_step("a", max(pace.steps.values()) + 1, False, 60.0, 0.0)
    assert not pace.hangs(69.0) and pace.hangs(69.1), "waits before the last step"
    pace.record_storage_wait("b", 35.0)
    assert not pace.hangs(74.0) and pace.hangs(74.1)


def test_new_worker_and_one_that_continues_count_their_waits_from_the_next_generation_on() -> None:
    pace = Pace(0.0, timeout_s=5.0)
    pace.record_storage_wait("a", 20.0)
    after = pace.for_next_generation(30.0)
    after.record_storage_wait("a", 20.0)  # it continues, and has waited no further
    assert after.hangs(35.1)
    after.record_storage_wait("a", 2.0)  # a new process
    assert not after.hangs(37.0) and after.hangs(37.1)
    after.remove_member("a", 40.0)
    assert not after.hangs(45.0) and after.hangs(45.1)


def test_next_generation_inherits_the_time_of_the_first_step() -> None:
    pace = pace_of_steps(5.0, 12.0, 13.0, start_s=2.0, timeout_s=9.0)
    after = pace.for_next_generation(100.0)
    assert (after.began, after.timeout_s, after.first_before_s) == (100.0, 9.0, 10.0)
    assert after.for_next_generation(200.0).first_before_s == 10.0  # a generation without a step changes nothing


@pytest.mark.parametrize(
    ("steps", "stopped", "behind"),
    [
        ({"a": 3, "b": 2, "c": 3}, (), ("b",)),
        ({"a": 3, "b": 2, "c": 2}, (), ("b", "c")),
        ({"a": 0, "c": 0}, (), ("b",)),  # it has not reported
        ({"a": 3, "b": 3, "c": 3}, (), ()),
        ({}, (), ()),
        ({"a": 3, "b": 2, "c": 3}, ("c",), ("c",)),  # a stopped process, whatever its step
        ({"a": 3, "b": 3, "c": 3}, ("a", "b"), ("a", "b")),
    ],
)
def test_members_behind_are_stopped_ones_or_those_without_the_newest_step(
    steps: dict[str, int], stopped: tuple[str, ...], behind: tuple[str, ...]
) -> None:
    pace = Pace(0.0)
    for name, step in steps.items():
        pace.record_step(name, step, True, 1.0, 0.0)
        pace.record_step(name, step, name in stopped, 2.0, 0.0)
    pace.record_step("stranger", 1, True, 2.0, 0.0)
    assert pace.blocking_members(("a", "b", "c")) == behind


def pace_with_lags(lags_s: list[float]) -> Pace:
    """Steps of 10 s of "a", each made by "b" so many seconds later, with a report of both after it."""
    pace = pace_of_steps(0.0, 10.0)
    for step, lag_s in enumerate(lags_s, 2):
        pace.record_step("a", step, False, 10.0 * step, 0.0)
        pace.record_step("b", step, False, 10.0 * step + lag_s, 0.0)
    return pace


@pytest.mark.parametrize(
    ("lags_s", "slow"),
    [
        ([5.0] * 7, False),  # too few samples
        ([5.0] * 8, True),
        ([4.0] * 8, False),  # who leaves a collective together is less apart
        ([5.0] * 6 + [0.0] * 2, True),  # three in four
        ([5.0] * 5 + [0.0] * 3, False),
        ([0.0] * 8, False),
    ],
)
def test_slow_member_is_named_once(lags_s: list[float], slow: bool) -> None:
    pace = pace_with_lags(lags_s)
    assert [pace.detect_slow_member("b"), pace.detect_slow_member("b"), pace.detect_slow_member("a")] == [
        slow,
        False,
        False,
    ]


def test_single_member_is_never_slow() -> None:
    times = [10.0 * step for step in range(20)]
    pace = pace_of_steps(*times)
    assert not pace.detect_slow_member("a") and not pace.detect_slow_member("stranger")
    assert pace.looks["a"] == len([*pairwise(times)]) - 1
