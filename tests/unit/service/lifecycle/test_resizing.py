"""Tests of a job's change of slots: its drivers are notified until they answer, and late ones end the job in order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hopsml.core.states import Lifecycle
from hopsml.service.lifecycle import (
    Ending,
    EngineSnapshot,
    JobRecord,
    SeenApplication,
    SlotsAnswer,
    TaskRule,
    begin_ending,
    begin_try,
    release_by_s,
    resize,
    step,
)
from hopsml.service.lifecycle.record import permitted_actions
from hopsml.service.lifecycle.step import GRACE_S, SHRINK_S, USUAL_GRACE_S, NextStep, state_changes

pytestmark = pytest.mark.fast

PREFIX = "t"
TASKS = (TaskRule("train"), TaskRule("serve"))


def running(slots: tuple[int, ...] = (4, 0)) -> JobRecord:
    """Return a running job of two tasks; the second one has a fixed size."""
    record = begin_try(JobRecord(7, TASKS), PREFIX, 100.0, slots).record
    return step(record, snapshot(record), PREFIX, 110.0).record


def snapshot(record: JobRecord, answer: SlotsAnswer | None = None) -> EngineSnapshot:
    """Return a snapshot in which both applications run, with the answer of the first driver."""
    seen = {
        launch.tag: (SeenApplication(f"app-{launch.task}", Lifecycle.RUNNING, answer=answer),)
        for launch in record.newest
    }
    return EngineSnapshot(seen)


def step_once(record: JobRecord, now: float, answer: SlotsAnswer | None = None) -> NextStep:
    return step(record, snapshot(record, answer), PREFIX, now)


def test_elastic_task_is_sent_its_slots_at_each_step_and_a_fixed_one_never() -> None:
    record = running()
    assert step_once(record, 111.0).tell == (("app-train", 4),)
    smaller = resize(record, (2, 0), "for another", 112.0)
    assert (smaller.state, smaller.cause, smaller.shrinking_since_s) == (Lifecycle.RUNNING, "for another", 112.0)
    for now in (112.0, 113.0):  # also after a restart of the service
        assert step_once(smaller, now).tell == (("app-train", 2),)
    assert step_once(running(()), 111.0).tell == ()


def test_shrinking_ends_once_the_driver_confirms_and_holds_no_more_slots() -> None:
    smaller = resize(running(), (2, 0), "for another", 112.0)
    for answer in (
        None,
        SlotsAnswer(4, 2),
        SlotsAnswer(2, 3),
    ):  # silent; not notified yet, though it has few; still holds one more
        assert step_once(smaller, 113.0, answer).record.shrinking_since_s == 112.0
    done = step_once(smaller, 114.0, SlotsAnswer(2, 2)).record
    assert done.shrinking_since_s == 0.0 and done.cause == "slots were released: train has 2"
    assert [change for change in state_changes(smaller, done) if not change[0]] == [("", Lifecycle.RUNNING, done.cause)]


def test_late_release_of_slots_ends_the_job_in_order_and_it_waits_again() -> None:
    smaller = resize(running(), (2, 0), "for another", 112.0)
    late = 112.0 + SHRINK_S + 1
    silent = step(smaller, EngineSnapshot(None), PREFIX, late)
    assert silent.record.ending == Ending.NONE  # its answer is unknown
    ended = step_once(smaller, late, SlotsAnswer(2, 4))
    assert ended.record.ending == Ending.PREEMPTED and ended.record.shrinking_since_s == 0.0
    assert ended.ask == ("app-train", "app-serve") and ended.tell == ()
    assert "within 180 s (for another)" in ended.record.cause
    over = {launch.tag: (SeenApplication(launch.application_id, Lifecycle.STOPPED),) for launch in ended.record.newest}
    waits = step(ended.record, EngineSnapshot(over), PREFIX, late + 1).record
    assert (waits.state, waits.preemptions) == (Lifecycle.WAITING, 1)
    assert begin_try(waits, PREFIX, late + 2, (3, 0)).record.slots == (3, 0)


def test_driver_that_starts_late_has_the_full_release_time() -> None:
    starting = begin_try(JobRecord(7, TASKS), PREFIX, 100.0, (4, 0)).record
    smaller = resize(starting, (2, 0), "for another", 101.0)
    late = 101.0 + SHRINK_S
    record = step_once(smaller, late).record
    assert record.state == Lifecycle.RUNNING
    assert step_once(record, late + SHRINK_S - 1).record.ending == Ending.NONE


def test_growth_takes_effect_at_once_and_ending_jobs_are_not_resized() -> None:
    larger = resize(running(), (6, 0), "nobody waits", 112.0)
    assert larger.slots == (6, 0) and larger.shrinking_since_s == 0.0
    assert [change[2] for change in state_changes(running(), larger)] == ["nobody waits"]
    for record in (replace(running(), ending=Ending.PAUSED), JobRecord(7, TASKS, state=Lifecycle.PAUSED, slots=(4, 0))):
        assert resize(record, (2, 0), "for another", 112.0) == record


def test_driver_of_an_ended_application_is_sent_no_slots() -> None:
    both = replace(running((4, 3)), state=Lifecycle.RUNNING)
    assert step_once(both, 111.0).tell == (("app-train", 4), ("app-serve", 3))
    states = {"train": Lifecycle.FINISHED, "serve": Lifecycle.RUNNING}
    seen = EngineSnapshot({one.tag: (SeenApplication(one.application_id, states[one.task]),) for one in both.newest})
    assert step(both, seen, PREFIX, 112.0).tell == (("app-serve", 3),)


def test_resize_requires_one_slot_count_per_task() -> None:
    for slots in ((4,), (4, 0, 0)):
        with pytest.raises(ValueError, match="zip"):
            resize(running(), slots, "for another", 112.0)


def test_cause_lists_the_slots_of_each_task_after_the_release() -> None:
    smaller = resize(running((4, 3)), (2, 1), "for another", 112.0)
    answers = {"train": SlotsAnswer(2, 2), "serve": SlotsAnswer(1, 1)}
    seen = {
        launch.tag: (SeenApplication(launch.application_id, Lifecycle.RUNNING, answer=answers[launch.task]),)
        for launch in smaller.newest
    }
    assert (
        step(smaller, EngineSnapshot(seen), PREFIX, 113.0).record.cause
        == "slots were released: train has 2, serve has 1"
    )


def test_slots_are_late_only_after_the_release_time_has_passed() -> None:
    smaller = resize(running(), (2, 0), "for another", 112.0)
    assert step_once(smaller, 112.0 + SHRINK_S).record.ending == Ending.NONE
    ended = step_once(smaller, 112.5 + SHRINK_S).record
    assert (ended.ending, ended.ending_since_s) == (Ending.PREEMPTED, 112.5 + SHRINK_S)
    assert ended.cause == "the slots were not released within 180 s (for another), so the job ends"


def test_ended_job_has_no_slots_to_release() -> None:
    smaller = resize(running((4, 2)), (2, 2), "for another", 112.0)
    ended = EngineSnapshot(
        {launch.tag: (SeenApplication(f"app-{launch.task}", Lifecycle.FINISHED),) for launch in smaller.newest}
    )
    over = step(smaller, ended, PREFIX, 120.0).record
    assert (over.state, over.shrinking_since_s, release_by_s(over)) == (Lifecycle.FINISHED, 0.0, None)


def test_release_deadline_is_the_time_when_the_job_would_be_killed() -> None:
    assert release_by_s(running()) is None
    smaller = resize(running(), (2, 0), "for another", 112.0)
    assert release_by_s(smaller) == 112.0 + SHRINK_S + GRACE_S[Ending.PREEMPTED]
    assert (
        release_by_s(begin_ending(running(), Ending.PREEMPTED, "for another", 113.0))
        == 113.0 + GRACE_S[Ending.PREEMPTED]
    )
    assert release_by_s(begin_ending(running(), Ending.CANCELLED, "by a user", 113.0)) == 113.0 + USUAL_GRACE_S


@pytest.mark.parametrize(
    ("state", "possible"),
    [
        (Lifecycle.WAITING, ("pause", "cancel", "move", "clone")),
        (Lifecycle.RUNNING, ("pause", "cancel", "move", "clone")),
        (Lifecycle.CLOSING, ("cancel", "move", "clone")),
        (Lifecycle.PAUSED, ("resume", "cancel", "move", "clone")),
        *((state, ("clone", "remove")) for state in Lifecycle if state.is_final),
    ],
)
def test_available_user_actions_depend_on_the_job_state(state: Lifecycle, possible: tuple[str, ...]) -> None:
    assert permitted_actions(state) == possible
