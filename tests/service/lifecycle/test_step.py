"""How a job goes on, rule by rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hopsml.service.lifecycle import Ending, JobRecord, SeenApplication, Sight, TaskRule, end, place, resume, step
from hopsml.service.lifecycle.sight import over, strays
from hopsml.service.lifecycle.step import (
    FILL_S,
    FREE_SUBMISSIONS,
    GONE_S,
    GRACE_S,
    SETTLE_S,
    SUBMIT_S,
    USUAL_GRACE_S,
    differences,
)
from hopsml.states import Lifecycle

pytestmark = pytest.mark.fast

PREFIX = "hopsml-job-ab12"
TRAIN = TaskRule("train", containers=3)
SILENT, EMPTY = Sight(None), Sight({})


def placed(*tasks: TaskRule, **more: int) -> JobRecord:
    return place(JobRecord(7, tasks or (TRAIN,), **more), PREFIX, 100.0).record


def sight(record: JobRecord, *states: Lifecycle, containers: int | None = None, why: str = "") -> Sight:
    """Each of its newest launches with an application in the state at its place."""
    return Sight(
        {
            launch.tag: (SeenApplication(f"app-{launch.tag}", state, why, containers),)
            for launch, state in zip(record.newest, states, strict=False)
        }
    )


def stepped(record: JobRecord, seen: Sight, now: float = 101.0) -> JobRecord:
    return step(record, seen, PREFIX, now).record


def test_the_intent_comes_before_the_submission_and_has_a_tag_that_yarn_keeps() -> None:
    begun = place(JobRecord(7, (TRAIN, TaskRule("eval"))), PREFIX, 100.0)
    assert begun.record.state == Lifecycle.STARTING and begun.record.launches == begun.submit
    assert [launch.tag for launch in begun.submit] == [f"{PREFIX}-7-1", f"{PREFIX}-7-1-1-1"]
    assert all(launch.tag == launch.tag.lower() and len(launch.tag) < 100 for launch in begun.submit)
    assert place(begun.record, PREFIX, 101.0).submit == ()  # once


def test_it_runs_when_all_containers_are_there_and_finishes_with_its_tasks() -> None:
    record = placed()
    record = stepped(record, sight(record, Lifecycle.STARTING))
    assert record.state == Lifecycle.STARTING
    record = stepped(record, sight(record, Lifecycle.RUNNING, containers=2))
    assert record.state == Lifecycle.STARTING
    record = stepped(record, sight(record, Lifecycle.RUNNING, containers=3), 105.0)
    assert (record.state, record.started_s) == (Lifecycle.RUNNING, 105.0)
    record = stepped(record, sight(record, Lifecycle.FINISHED), 200.0)
    assert (record.state, record.ended_s) == (Lifecycle.FINISHED, 200.0)
    assert stepped(record, sight(record, Lifecycle.FAILED)) == record  # what is over stays as it is
    assert end(record, Ending.CANCELLED, "too late", 300.0) == record


def test_of_what_is_there_no_more_is_said_than_was_seen() -> None:
    one, two = placed(), placed(TRAIN, TaskRule("eval"))
    running = (Lifecycle.RUNNING, Lifecycle.RUNNING)
    assert stepped(one, sight(one, *running, containers=3)).cause == "all of its workers are there"
    assert stepped(one, sight(one, *running)).cause == "its driver runs"
    assert stepped(two, sight(two, *running)).cause == "all of its drivers run"


@pytest.mark.parametrize("state", [Lifecycle.STARTING, Lifecycle.RUNNING, Lifecycle.CLOSING])
def test_a_job_without_applications_has_not_finished_and_is_tried_again(state: Lifecycle) -> None:
    ending = Ending.PREEMPTED if state == Lifecycle.CLOSING else Ending.NONE
    for launches in ((), placed(TRAIN, TaskRule("more")).launches[:1]):
        record = replace(placed(TRAIN, TaskRule("more")), state=state, ending=ending, launches=launches)
        for one in launches:
            record = record.changed(replace(one, state=Lifecycle.FINISHED))
        after = step(record, EMPTY, PREFIX, 200.0).record
        assert after.state == Lifecycle.WAITING and not after.ended_s


def test_nothing_is_concluded_while_the_engine_is_silent() -> None:
    record = stepped(placed(), EMPTY, 101.0)
    for now in range(102, 5000, 100):
        record = stepped(record, SILENT, float(now))
    assert record.state == Lifecycle.STARTING and not record.launches[0].state.is_final
    record = stepped(record, EMPTY, 5000.0)
    assert stepped(record, EMPTY, 5000.0 + SETTLE_S / 2).state == Lifecycle.STARTING  # the hold-off begins anew


def test_an_intent_that_nobody_submits_is_tried_again_with_a_new_tag_and_not_for_ever() -> None:
    record = placed()
    for number in range(1, FREE_SUBMISSIONS + 2):
        assert record.tries == number
        record = stepped(record, EMPTY, 1000.0 * number)
        record = stepped(record, EMPTY, 1000.0 * number + SETTLE_S)
        if number <= FREE_SUBMISSIONS:
            assert (record.state, record.failed_submissions) == (Lifecycle.WAITING, number)
            record = place(record, PREFIX, 1000.0 * number + 20).record
    assert record.state == Lifecycle.FAILED and "before it was submitted" in record.cause


def test_a_submission_under_way_is_waited_for_and_a_refused_one_fails_with_its_words() -> None:
    record = placed()
    tag = record.launches[0].tag
    record = stepped(record, Sight({}, frozenset({tag})), 100 + SETTLE_S * 5)
    assert record.state == Lifecycle.STARTING
    refused = Sight({}, frozenset(), {tag: "queue q is unknown"})
    record = stepped(record, refused, 200.0)
    assert record.state == Lifecycle.STARTING  # YARN may have it all the same
    record = stepped(record, refused, 200.0 + SETTLE_S)
    assert record.state == Lifecycle.FAILED and "queue q is unknown" in record.cause
    late = step(placed(), Sight({}, frozenset({tag})), PREFIX, 101.0 + SUBMIT_S)
    assert late.record.ending == Ending.NOT_SUBMITTED and late.withdraw == (tag,)


def test_an_application_that_was_there_and_vanishes_is_lost_after_a_hold_off() -> None:
    record = placed()
    there = sight(record, Lifecycle.RUNNING)
    record = stepped(stepped(record, there), EMPTY, 110.0)
    assert stepped(record, EMPTY, 110.0 + GONE_S - 1).state == Lifecycle.RUNNING
    assert stepped(stepped(record, there, 120.0), EMPTY, 110.0 + GONE_S).state == Lifecycle.RUNNING  # it came back
    lost = stepped(record, EMPTY, 110.0 + GONE_S)
    assert lost.state == Lifecycle.FAILED and "not known any more" in lost.cause


@pytest.mark.parametrize(
    ("how", "said"), [(Lifecycle.FAILED, "failed: boom"), (Lifecycle.STOPPED, "killed from outside")]
)
def test_a_failure_ends_the_others_and_is_tried_again_while_retries_last(how: Lifecycle, said: str) -> None:
    record = placed(TRAIN, TaskRule("eval"), retries=1)
    both = sight(record, Lifecycle.RUNNING, Lifecycle.RUNNING)
    record = stepped(record, both)
    one = step(record, sight(record, how, Lifecycle.RUNNING, why="boom"), PREFIX, 102.0)
    assert one.record.state == Lifecycle.CLOSING and said in one.record.cause
    assert one.ask == (f"app-{record.launches[1].tag}",) and one.kill == ()
    later = step(one.record, sight(record, how, Lifecycle.RUNNING), PREFIX, 102.0 + USUAL_GRACE_S)
    assert later.kill == one.ask
    record = stepped(later.record, sight(record, how, Lifecycle.STOPPED), 130.0)
    assert (record.state, record.retries) == (Lifecycle.WAITING, 0)
    again = place(record, PREFIX, 140.0).record
    assert again.launches[0].tag.endswith("-7-2")
    again = stepped(again, sight(again, how, Lifecycle.STOPPED), 150.0)
    assert again.state == Lifecycle.FAILED


def test_a_task_that_may_be_relaunched_is_alone() -> None:
    record = placed(TRAIN, TaskRule("eval", relaunch=True), retries=1)
    record = stepped(record, sight(record, Lifecycle.RUNNING, Lifecycle.RUNNING))
    one = step(record, sight(record, Lifecycle.RUNNING, Lifecycle.FAILED), PREFIX, 102.0)
    assert one.record.state == Lifecycle.RUNNING and one.record.retries == 0
    assert [launch.tag for launch in one.submit] == [f"{PREFIX}-7-1-1-2"]
    assert [launch.number for launch in one.record.newest] == [1, 2]
    record = stepped(one.record, sight(one.record, Lifecycle.FINISHED, Lifecycle.FINISHED))
    assert record.state == Lifecycle.FINISHED


def test_cancel_wins_over_everything_but_an_end_that_was_quicker() -> None:
    waiting = JobRecord(7, (TRAIN,))
    assert end(waiting, Ending.CANCELLED, "by alice", 5.0).state == Lifecycle.CANCELLED
    record = stepped(placed(), sight(placed(), Lifecycle.RUNNING))
    preempted = end(record, Ending.PREEMPTED, "for x-1", 110.0)
    cancelled = end(preempted, Ending.CANCELLED, "by alice", 111.0)
    assert end(cancelled, Ending.PAUSED, "by bob", 112.0) == cancelled
    assert stepped(cancelled, sight(record, Lifecycle.STOPPED), 120.0).state == Lifecycle.CANCELLED
    assert stepped(cancelled, sight(record, Lifecycle.FINISHED), 120.0).state == Lifecycle.FINISHED


def test_pause_and_preemption_give_the_slots_back_and_are_told_apart() -> None:
    record = stepped(placed(), sight(placed(), Lifecycle.RUNNING))
    paused = stepped(end(record, Ending.PAUSED, "paused by bob", 110.0), sight(record, Lifecycle.STOPPED), 120.0)
    assert (paused.state, paused.ending, paused.preemptions) == (Lifecycle.PAUSED, Ending.NONE, 0)
    assert resume(paused, "resumed").state == Lifecycle.WAITING
    gone = stepped(end(record, Ending.PREEMPTED, "for x-1", 110.0), sight(record, Lifecycle.STOPPED), 120.0)
    assert (gone.state, gone.preemptions, gone.retries) == (Lifecycle.WAITING, 1, record.retries)
    hasty = resume(end(record, Ending.PAUSED, "paused", 110.0), "resumed")
    assert stepped(hasty, sight(record, Lifecycle.STOPPED), 120.0).state == Lifecycle.WAITING


def test_a_gang_that_is_not_filled_goes_back_and_a_time_limit_ends() -> None:
    record = stepped(placed(), sight(placed(), Lifecycle.RUNNING, containers=2))
    short = stepped(record, sight(record, Lifecycle.RUNNING, containers=2), 102.0 + FILL_S)
    assert short.ending == Ending.NOT_FILLED
    assert stepped(short, sight(record, Lifecycle.STOPPED), 400.0).state == Lifecycle.WAITING
    limited = replace(stepped(record, sight(record, Lifecycle.RUNNING, containers=3), 110.0), time_limit_s=60.0)
    assert stepped(limited, sight(record, Lifecycle.RUNNING, containers=3), 169.0).ending == Ending.NONE
    over = stepped(limited, sight(record, Lifecycle.RUNNING, containers=3), 171.0)
    assert stepped(over, sight(record, Lifecycle.STOPPED), 172.0).state == Lifecycle.FAILED


def test_strays_are_those_that_no_living_launch_has() -> None:
    run, over = Lifecycle.RUNNING, Lifecycle.FINISHED
    seen = Sight(
        {
            "t-1": (SeenApplication("a", run), SeenApplication("b", run)),
            "t-2": (SeenApplication("c", run), SeenApplication("d", over)),
            "t-3": (SeenApplication("e", run), SeenApplication("f", run)),
        }
    )
    assert sorted(strays(seen, {"t-1": "", "t-3": "f"})) == ["b", "c", "e"]
    assert list(strays(SILENT, {})) == []


def test_each_change_of_state_is_told_once() -> None:
    waiting = JobRecord(7, (TRAIN,))
    record = place(waiting, PREFIX, 100.0).record
    assert [(task, state) for task, state, _ in differences(waiting, record)] == [
        ("", Lifecycle.STARTING),
        ("train", Lifecycle.WAITING),
    ]
    assert list(differences(record, stepped(record, EMPTY))) == []


def test_a_stronger_ending_does_not_restart_the_grace_period_of_the_first() -> None:
    record = stepped(placed(), sight(placed(), Lifecycle.RUNNING, containers=3))
    preempted = end(record, Ending.PREEMPTED, "for x-1", 110.0)
    cancelled = end(preempted, Ending.CANCELLED, "by alice", 110.0 + USUAL_GRACE_S - 1)
    seen = sight(record, Lifecycle.RUNNING, containers=3)
    before = step(cancelled, seen, PREFIX, 110.0 + USUAL_GRACE_S - 0.5)
    assert (before.ask, before.kill) == ((f"app-{record.launches[0].tag}",), ())
    after = step(cancelled, seen, PREFIX, 110.0 + USUAL_GRACE_S)
    assert (after.ask, after.kill) == ((), before.ask)


@pytest.mark.parametrize("ending", [Ending.PREEMPTED, Ending.PAUSED, Ending.CANCELLED, Ending.NOT_FILLED])
def test_each_ending_has_its_own_grace_period_before_applications_are_killed(ending: Ending) -> None:
    record = stepped(placed(), sight(placed(), Lifecycle.RUNNING, containers=3))
    ends = end(record, ending, "why", 110.0)
    grace_s = GRACE_S.get(ending, USUAL_GRACE_S)
    seen = sight(record, Lifecycle.RUNNING, containers=3)
    assert step(ends, seen, PREFIX, 110.0 + grace_s).kill
    if grace_s:
        asked = step(ends, seen, PREFIX, 110.0 + grace_s - 0.5)
        assert asked.ask and not asked.kill


def test_a_submission_under_way_is_withdrawn_for_as_long_as_the_ending_lasts() -> None:
    record = placed()
    tag = record.launches[0].tag
    under_way = Sight({}, frozenset({tag}))
    ends = end(record, Ending.CANCELLED, "by alice", 110.0)
    for now in (110.0, 110.0 + USUAL_GRACE_S, 110.0 + 5 * USUAL_GRACE_S):
        assert step(ends, under_way, PREFIX, now).withdraw == (tag,)


def test_time_limits_are_exceeded_only_after_their_last_second() -> None:
    tag = placed().launches[0].tag
    at_submission_limit = step(placed(), Sight({}, frozenset({tag})), PREFIX, 100.0 + SUBMIT_S)
    assert at_submission_limit.record.ending == Ending.NONE
    short = stepped(placed(), sight(placed(), Lifecycle.RUNNING, containers=2), 110.0)
    assert stepped(short, sight(short, Lifecycle.RUNNING, containers=2), 110.0 + FILL_S).ending == Ending.NONE
    running = replace(stepped(placed(), sight(placed(), Lifecycle.RUNNING, containers=3), 110.0), time_limit_s=60.0)
    assert stepped(running, sight(running, Lifecycle.RUNNING, containers=3), 170.0).ending == Ending.NONE


def test_a_try_that_ran_forgives_the_failed_submissions_before_it() -> None:
    record = replace(placed(), failed_submissions=2)
    waiting = stepped(record, sight(record, Lifecycle.STARTING))
    assert waiting.failed_submissions == 2
    assert stepped(waiting, sight(record, Lifecycle.RUNNING, containers=3)).failed_submissions == 0


def test_a_resumed_job_has_the_cause_of_its_resumption() -> None:
    record = stepped(placed(), sight(placed(), Lifecycle.RUNNING, containers=3))
    pausing = end(record, Ending.PAUSED, "paused by bob", 110.0)
    hasty = resume(pausing, "resumed by ann")
    assert (hasty.ending, hasty.cause) == (Ending.PREEMPTED, "resumed by ann")
    paused = stepped(pausing, sight(record, Lifecycle.STOPPED), 120.0)
    assert resume(paused, "resumed by ann").cause == "resumed by ann"
    assert resume(record, "resumed by ann") == record


@pytest.mark.parametrize(
    ("state", "cause"),
    [
        (Lifecycle.FAILED, "task train failed: boom"),
        (Lifecycle.STOPPED, "task train was killed from outside: boom"),
        (Lifecycle.LOST, "task train was lost: boom"),
    ],
)
def test_a_failed_job_names_the_task_and_what_became_of_it(state: Lifecycle, cause: str) -> None:
    record = stepped(placed(), sight(placed(), Lifecycle.RUNNING, containers=3))
    assert stepped(record, sight(record, state, why="boom")).cause == cause


def test_launches_that_have_ended_are_forgotten_once_nothing_of_them_lives() -> None:
    run, finished = Lifecycle.RUNNING, Lifecycle.FINISHED
    seen = Sight(
        {
            "ended": (SeenApplication("a", finished), SeenApplication("b", Lifecycle.FAILED)),
            "half": (SeenApplication("c", finished), SeenApplication("d", run)),
            "living": (SeenApplication("e", finished),),
            "again": (SeenApplication("f", finished),),
        },
        submitting=frozenset({"again"}),
        refused={"refused": "no such queue", "again": "no such queue"},
    )
    assert sorted(over(seen, {"living": "e"})) == ["ended", "refused"]
    assert list(over(SILENT, {})) == []
