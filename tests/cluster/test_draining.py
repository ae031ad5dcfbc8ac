"""Tests of members whose nodes leave: how long they train, and who stores state that no other agent holds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsml.cluster.gang.pace import AT_ONCE_S, RESERVE_STEPS, RESERVE_WRITES, Drains, go_on_s

pytestmark = pytest.mark.fast


@settings(deadline=None)
@given(st.floats(0.0, 1e4), st.floats(0.0, 1e3), st.floats(0.0, 1e3))
def test_nobody_goes_on_for_all_of_the_time_that_is_left(time_s: float, step_s: float, write_s: float) -> None:
    going = go_on_s(time_s, step_s, write_s)
    reserve = max(RESERVE_STEPS * step_s, RESERVE_WRITES * write_s, min(10.0, time_s / 2))
    assert going == 0.0 or (time_s > AT_ONCE_S and 0.0 <= going <= time_s - reserve)
    assert going <= go_on_s(time_s + 1.0, step_s, write_s)


@pytest.mark.parametrize(
    ("time_s", "step_s", "write_s", "going"),
    [(5.0, 0.0, 0.0, 0.0), (6.0, 0.0, 0.0, 3.0), (40.0, 0.0, 0.0, 30.0), (40.0, 5.0, 0.0, 20.0), (40.0, 0.0, 8.0, 24.0),
     (6.0, 2.0, 0.0, 0.0), (float("inf"), 1.0, 1.0, float("inf"))],
)  # fmt: skip
def test_so_long_they_go_on(time_s: float, step_s: float, write_s: float, going: float) -> None:
    assert go_on_s(time_s, step_s, write_s) == going


def test_steps_and_checkpoints_that_take_long_make_them_stop_sooner() -> None:
    drains = Drains()
    drains.warn("a", 100.0, 40.0)
    assert not drains.must_park(["a"], 119.9, 5.0) and drains.must_park(["a"], 120.0, 5.0)
    drains.persisted(3, 8.0, leaves=False)
    drains.persisted(3, 1.0, leaves=False)
    drains.persisted(2, 1.0, leaves=False)
    assert not drains.must_park(["a"], 123.9, 0.0) and drains.must_park(["b", "a"], 124.0, 0.0)
    assert (drains.stored, drains.handed_over) == (3, -1) and drains.is_safe(3) and not drains.is_safe(4)


def test_of_several_warnings_the_one_that_ends_first_counts() -> None:
    drains = Drains()
    drains.warn("a", 0.0, 100.0)
    drains.warn("a", 94.0, 6.0)
    assert not drains.must_park(["a"], 89.9, 0.0) and drains.must_park(["a"], 90.0, 0.0)
    drains.warn("a", 10.0, 20.0)
    drains.warn("a", 11.0, 300.0)
    assert not drains.must_park(["a"], 19.9, 0.0) and drains.must_park(["a"], 20.0, 0.0)
    assert not drains.must_park(["b"], 1e9, 0.0)
    drains.forget("a")
    drains.forget("nobody")
    assert not drains.must_park(["a"], 1e9, 0.0)


def test_what_only_those_hold_that_leave_is_stored_by_the_first_of_them() -> None:
    assert Drains().to_store({}, ["a"], once=False) is None
    assert Drains().to_store({"a": -1}, ["a"], once=False) is None
    assert Drains().to_store({"a": 0}, ["a"], once=False) == "a"
    assert Drains().to_store({"a": 5, "b": 5}, ["a"], once=False) is None
    assert Drains().to_store({"b": 3, "a": 5, "c": 5}, ["a", "c"], once=False) == "a"
    assert Drains().to_store({"b": 3, "a": 5}, ["a"], once=True) is None  # b is about to hold it as well
    assert Drains().to_store({"b": 3, "a": 5}, ["a", "b"], once=True) == "a"
    assert Drains(stored=5).to_store({"a": 5}, ["a"], once=False) is None
    assert Drains(stored=4).to_store({"a": 5}, ["a"], once=False) == "a"


def test_it_is_asked_for_once_while_they_train_and_for_each_commit_when_they_stand_still() -> None:
    drains = Drains()
    assert drains.to_store({"a": 5, "b": 5}, ["a", "b"], once=True) == "a"
    assert drains.to_store({"a": 6, "b": 6}, ["a", "b"], once=True) is None
    assert drains.to_store({"a": 6, "b": 6}, ["a", "b"], once=False) == "a"
    assert drains.to_store({"a": 6, "b": 6}, ["a", "b"], once=False) is None
    assert drains.to_store({"b": 6}, ["b"], once=True) == "b", "a is gone"
    drains.forget("b")
    assert drains.to_store({"b": 6}, ["b"], once=False) == "b"
    drains.persisted(6, 0.1, leaves=True)
    assert drains.to_store({"b": 6}, ["b"], once=False) is None and drains.handed_over == 6
    drains.persisted(5, 0.1, leaves=True)
    assert drains.handed_over == 6
