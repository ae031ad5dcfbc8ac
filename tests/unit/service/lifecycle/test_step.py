"""Tests of each rule by which a job proceeds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hopsml.core.states import Lifecycle
from hopsml.service.lifecycle import (
    Ending,
    EngineSnapshot,
    JobRecord,
    SeenApplication,
    TaskRule,
    begin_ending,
    begin_try,
    resume,
    step,
)
from hopsml.service.lifecycle.record import ended_tags, stray_applications
from hopsml.service.lifecycle.step import (
    CHIEF_S,
    CLOSING_S,
    FILL_S,
    FREE_SUBMISSIONS,
    GONE_S,
    GRACE_S,
    SETTLE_S,
    SUBMIT_S,
    UNREADABLE_S,
    USUAL_GRACE_S,
    state_changes,
)

pytestmark = pytest.mark.fast

PREFIX = "hopsml-job-ab12"
TRAIN = TaskRule("train", containers=3)
SILENT, EMPTY = EngineSnapshot(None), EngineSnapshot({})


def placed(*tasks: TaskRule, **more: int) -> JobRecord:
    return begin_try(JobRecord(7, tasks or (TRAIN,), **more), PREFIX, 100.0).record


def snapshot(record: JobRecord, *states: Lifecycle, containers: int | None = None, why: str = "") -> EngineSnapshot:
    """Return a snapshot with one application for each newest launch, in the given states."""
    return EngineSnapshot(
        {
            launch.tag: (SeenApplication(f"app-{launch.tag}", state, why, containers),)
            for launch, state in zip(record.newest, states, strict=False)
        }
    )


def step_once(record: JobRecord, seen: EngineSnapshot, now: float = 101.0) -> JobRecord:
    return step(record, seen, PREFIX, now).record


def test_launch_is_recorded_before_submission_with_a_tag_that_yarn_accepts() -> None:
    begun = begin_try(JobRecord(7, (TRAIN, TaskRule("eval"))), PREFIX, 100.0)
    assert begun.record.state == Lifecycle.STARTING and begun.record.launches == begun.submit
    assert [launch.tag for launch in begun.submit] == [f"{PREFIX}-7-1", f"{PREFIX}-7-1-1-1"]
    assert all(launch.tag == launch.tag.lower() and len(launch.tag) < 100 for launch in begun.submit)
    assert begin_try(begun.record, PREFIX, 101.0).submit == ()  # once


def test_job_runs_when_all_containers_are_allocated_and_finishes_with_its_tasks() -> None:
    record = placed()
    record = step_once(record, snapshot(record, Lifecycle.STARTING))
    assert record.state == Lifecycle.STARTING
    record = step_once(record, snapshot(record, Lifecycle.RUNNING, containers=2))
    assert record.state == Lifecycle.STARTING
    record = step_once(record, snapshot(record, Lifecycle.RUNNING, containers=3), 105.0)
    assert (record.state, record.started_s) == (Lifecycle.RUNNING, 105.0)
    record = step_once(record, snapshot(record, Lifecycle.FINISHED), 200.0)
    assert (record.state, record.ended_s) == (Lifecycle.FINISHED, 200.0)
    assert step_once(record, snapshot(record, Lifecycle.FAILED)) == record  # what is over stays as it is
    assert begin_ending(record, Ending.CANCELLED, "too late", 300.0) == record


def test_cause_of_a_running_job_states_only_what_was_observed() -> None:
    one, two = placed(), placed(TRAIN, TaskRule("eval"))
    running = (Lifecycle.RUNNING, Lifecycle.RUNNING)
    assert step_once(one, snapshot(one, *running, containers=3)).cause == "all workers are connected"
    assert step_once(one, snapshot(one, *running)).cause == "the driver is running"
    assert step_once(two, snapshot(two, *running)).cause == "all drivers are running"


@pytest.mark.parametrize("state", [Lifecycle.STARTING, Lifecycle.RUNNING, Lifecycle.CLOSING])
def test_job_without_applications_is_not_finished_but_retried(state: Lifecycle) -> None:
    ending = Ending.PREEMPTED if state == Lifecycle.CLOSING else Ending.NONE
    for launches in ((), placed(TRAIN, TaskRule("more")).launches[:1]):
        record = replace(placed(TRAIN, TaskRule("more")), state=state, ending=ending, launches=launches)
        for one in launches:
            record = record.changed(replace(one, state=Lifecycle.FINISHED))
        after = step(record, EMPTY, PREFIX, 200.0).record
        assert after.state == Lifecycle.WAITING and not after.ended_s


def test_job_state_does_not_change_while_the_engine_is_unreachable() -> None:
    record = step_once(placed(), EMPTY, 101.0)
    for now in range(102, 5000, 100):
        record = step_once(record, SILENT, float(now))
    assert record.state == Lifecycle.STARTING and not record.launches[0].state.is_final
    record = step_once(record, EMPTY, 5000.0)
    assert step_once(record, EMPTY, 5000.0 + SETTLE_S / 2).state == Lifecycle.STARTING  # the hold-off restarts


def test_job_whose_application_cannot_be_asked_for_fails_after_the_time_of_a_submission() -> None:
    """The ResourceManager refuses web requests: spark-submit has submitted, and the service sees nothing of it."""
    record, tag = placed(), placed().launches[0].tag
    refused = EngineSnapshot(None, problem="HTTP 401", unreadable_s=SUBMIT_S)
    assert step_once(record, refused, 100.0 + SUBMIT_S).state == Lifecycle.STARTING
    under_way = EngineSnapshot(None, frozenset({tag}), problem="HTTP 401", unreadable_s=SUBMIT_S)
    assert step_once(record, under_way, 101.0 + SUBMIT_S).state == Lifecycle.STARTING
    ended = step_once(record, refused, 101.0 + SUBMIT_S)
    assert ended.state == Lifecycle.FAILED and "HTTP 401" in ended.cause and tag in ended.cause
    running = step_once(record, snapshot(record, Lifecycle.RUNNING, containers=3), 200.0)
    assert step_once(running, refused, 1e6).state == Lifecycle.RUNNING, "it runs, as far as anybody knows"


def test_waiting_job_fails_after_a_day_without_the_cluster() -> None:
    record = JobRecord(7, (TRAIN,))
    assert step_once(record, EngineSnapshot(None, problem="HTTP 401", unreadable_s=UNREADABLE_S)) == record
    ended = step_once(record, EngineSnapshot(None, problem="HTTP 401", unreadable_s=UNREADABLE_S + 1))
    assert (ended.state, ended.cause) == (Lifecycle.FAILED, "the cluster could not be asked for 24 hours: HTTP 401")
    paused = JobRecord(7, (TRAIN,), state=Lifecycle.PAUSED)
    assert step_once(paused, EngineSnapshot(None, problem="HTTP 401", unreadable_s=1e6)) == paused


def test_lost_submission_is_retried_with_a_new_tag_a_limited_number_of_times() -> None:
    record = placed()
    for number in range(1, FREE_SUBMISSIONS + 2):
        assert record.tries == number
        record = step_once(record, EMPTY, 1000.0 * number)
        record = step_once(record, EMPTY, 1000.0 * number + SETTLE_S)
        if number <= FREE_SUBMISSIONS:
            assert (record.state, record.failed_submissions) == (Lifecycle.WAITING, number)
            record = begin_try(record, PREFIX, 1000.0 * number + 20).record
    assert record.state == Lifecycle.FAILED and "before the application was submitted" in record.cause


def test_pending_submission_is_waited_for_and_a_refused_one_fails_the_job() -> None:
    record = placed()
    tag = record.launches[0].tag
    record = step_once(record, EngineSnapshot({}, frozenset({tag})), 100 + SETTLE_S * 5)
    assert record.state == Lifecycle.STARTING
    refused = EngineSnapshot({}, frozenset(), {tag: "queue q is unknown"})
    record = step_once(record, refused, 200.0)
    assert record.state == Lifecycle.STARTING  # YARN may have it all the same
    record = step_once(record, refused, 200.0 + SETTLE_S)
    assert record.state == Lifecycle.FAILED and "queue q is unknown" in record.cause
    late = step(placed(), EngineSnapshot({}, frozenset({tag})), PREFIX, 101.0 + SUBMIT_S)
    assert late.record.ending == Ending.NOT_SUBMITTED and late.withdraw == (tag,)


def test_vanished_application_is_lost_only_after_a_hold_off() -> None:
    record = placed()
    there = snapshot(record, Lifecycle.RUNNING)
    record = step_once(step_once(record, there), EMPTY, 110.0)
    assert step_once(record, EMPTY, 110.0 + GONE_S - 1).state == Lifecycle.RUNNING
    assert step_once(step_once(record, there, 120.0), EMPTY, 110.0 + GONE_S).state == Lifecycle.RUNNING  # it came back
    lost = step_once(record, EMPTY, 110.0 + GONE_S)
    assert lost.state == Lifecycle.FAILED and "no longer knows" in lost.cause


@pytest.mark.parametrize(
    ("final_state", "expected"), [(Lifecycle.FAILED, "failed: boom"), (Lifecycle.STOPPED, "killed from outside")]
)
def test_failed_task_ends_the_other_tasks_and_the_job_is_retried_up_to_its_limit(
    final_state: Lifecycle, expected: str
) -> None:
    record = placed(TRAIN, TaskRule("eval"), retries=1)
    both = snapshot(record, Lifecycle.RUNNING, Lifecycle.RUNNING)
    record = step_once(record, both)
    one = step(record, snapshot(record, final_state, Lifecycle.RUNNING, why="boom"), PREFIX, 102.0)
    assert one.record.state == Lifecycle.CLOSING and expected in one.record.cause
    assert one.ask == (f"app-{record.launches[1].tag}",) and one.kill == ()
    later = step(one.record, snapshot(record, final_state, Lifecycle.RUNNING), PREFIX, 102.0 + USUAL_GRACE_S)
    assert later.kill == one.ask
    record = step_once(later.record, snapshot(record, final_state, Lifecycle.STOPPED), 130.0)
    assert (record.state, record.retries) == (Lifecycle.WAITING, 0)
    again = begin_try(record, PREFIX, 140.0).record
    assert again.launches[0].tag.endswith("-7-2")
    again = step_once(again, snapshot(again, final_state, Lifecycle.STOPPED), 150.0)
    assert again.state == Lifecycle.FAILED


def test_relaunchable_task_is_relaunched_without_the_other_tasks() -> None:
    record = placed(TRAIN, TaskRule("eval", relaunch=True), retries=1)
    record = step_once(record, snapshot(record, Lifecycle.RUNNING, Lifecycle.RUNNING))
    one = step(record, snapshot(record, Lifecycle.RUNNING, Lifecycle.FAILED), PREFIX, 102.0)
    assert one.record.state == Lifecycle.RUNNING and one.record.retries == 0
    assert [launch.tag for launch in one.submit] == [f"{PREFIX}-7-1-1-2"]
    assert [launch.number for launch in one.record.newest] == [1, 2]
    record = step_once(one.record, snapshot(one.record, Lifecycle.FINISHED, Lifecycle.FINISHED))
    assert record.state == Lifecycle.FINISHED


def test_cancel_overrides_other_endings_but_not_a_finished_job() -> None:
    waiting = JobRecord(7, (TRAIN,))
    assert begin_ending(waiting, Ending.CANCELLED, "by alice", 5.0).state == Lifecycle.CANCELLED
    record = step_once(placed(), snapshot(placed(), Lifecycle.RUNNING))
    preempted = begin_ending(record, Ending.PREEMPTED, "for x-1", 110.0)
    cancelled = begin_ending(preempted, Ending.CANCELLED, "by alice", 111.0)
    assert begin_ending(cancelled, Ending.PAUSED, "by bob", 112.0) == cancelled
    assert step_once(cancelled, snapshot(record, Lifecycle.STOPPED), 120.0).state == Lifecycle.CANCELLED
    assert step_once(cancelled, snapshot(record, Lifecycle.FINISHED), 120.0).state == Lifecycle.FINISHED


def ended_once(record: JobRecord, application: SeenApplication) -> tuple[Lifecycle, str]:
    """Return state and cause of the launch of a job that is being ended, after its application was seen."""
    (launch,) = step_once(record, EngineSnapshot({record.launches[0].tag: (application,)}), 120.0).launches
    return launch.state, launch.cause


def test_task_of_a_cancelled_job_is_cancelled_by_the_user_and_not_failed() -> None:
    record = step_once(placed(), snapshot(placed(), Lifecycle.RUNNING))
    cancelled = begin_ending(record, Ending.CANCELLED, "cancelled by alice", 110.0)
    app = f"app-{record.launches[0].tag}"
    interrupted = SeenApplication(app, Lifecycle.FAILED, "exit status 130: it has ended", was_interrupted=True)
    killed = SeenApplication(app, Lifecycle.STOPPED, "exit status -9")
    failed = SeenApplication(app, Lifecycle.FAILED, "exit status 1: ValueError: no")
    assert ended_once(cancelled, interrupted) == (Lifecycle.CANCELLED, "cancelled by alice")
    assert ended_once(cancelled, killed) == (Lifecycle.CANCELLED, "cancelled by alice")
    assert ended_once(cancelled, failed) == (
        Lifecycle.CANCELLED,
        "cancelled by alice; exit status 1: ValueError: no",
    )
    assert ended_once(cancelled, SeenApplication(app, Lifecycle.FINISHED)) == (Lifecycle.FINISHED, "")


@pytest.mark.parametrize("ending", [Ending.PAUSED, Ending.PREEMPTED, Ending.TIME_LIMIT, Ending.FAILED])
def test_task_that_the_service_ended_has_stopped_for_the_reason_of_its_job(ending: Ending) -> None:
    record = step_once(placed(), snapshot(placed(), Lifecycle.RUNNING))
    ends = begin_ending(record, ending, "the reason", 110.0)
    app = f"app-{record.launches[0].tag}"
    interrupted = SeenApplication(app, Lifecycle.FAILED, "exit status 130", was_interrupted=True)
    assert ended_once(ends, interrupted) == (Lifecycle.STOPPED, "the reason")
    failed = SeenApplication(app, Lifecycle.FAILED, "exit status 1: ValueError: no")
    assert ended_once(ends, failed) == (Lifecycle.FAILED, "exit status 1: ValueError: no")


def test_interrupt_that_nobody_requested_of_the_service_is_a_failure() -> None:
    record = step_once(placed(), snapshot(placed(), Lifecycle.RUNNING))
    app = f"app-{record.launches[0].tag}"
    interrupted = SeenApplication(app, Lifecycle.FAILED, "exit status 130", was_interrupted=True)
    assert ended_once(record, interrupted) == (Lifecycle.FAILED, "exit status 130")


def test_task_whose_submission_was_withdrawn_by_a_cancel_is_cancelled() -> None:
    cancelled = begin_ending(placed(), Ending.CANCELLED, "cancelled by alice", 110.0)
    unseen = step_once(cancelled, EMPTY, 111.0)
    ended = step_once(unseen, EMPTY, 111.0 + SETTLE_S)
    assert (ended.state, ended.launches[0].state) == (Lifecycle.CANCELLED, Lifecycle.CANCELLED)
    assert ended.launches[0].cause == "cancelled by alice"


def test_paused_and_preempted_jobs_release_slots_and_end_in_different_states() -> None:
    record = step_once(placed(), snapshot(placed(), Lifecycle.RUNNING))
    paused = step_once(
        begin_ending(record, Ending.PAUSED, "paused by bob", 110.0), snapshot(record, Lifecycle.STOPPED), 120.0
    )
    assert (paused.state, paused.ending, paused.preemptions) == (Lifecycle.PAUSED, Ending.NONE, 0)
    assert resume(paused, "resumed").state == Lifecycle.WAITING
    requeued = step_once(
        begin_ending(record, Ending.PREEMPTED, "for x-1", 110.0), snapshot(record, Lifecycle.STOPPED), 120.0
    )
    assert (requeued.state, requeued.preemptions, requeued.retries) == (Lifecycle.WAITING, 1, record.retries)
    hasty = resume(begin_ending(record, Ending.PAUSED, "paused", 110.0), "resumed")
    assert step_once(hasty, snapshot(record, Lifecycle.STOPPED), 120.0).state == Lifecycle.WAITING


def test_unfilled_gang_waits_again_and_an_exceeded_time_limit_fails_the_job() -> None:
    record = step_once(placed(), snapshot(placed(), Lifecycle.RUNNING, containers=2))
    short = step_once(record, snapshot(record, Lifecycle.RUNNING, containers=2), 102.0 + FILL_S)
    assert short.ending == Ending.NOT_FILLED
    assert step_once(short, snapshot(record, Lifecycle.STOPPED), 400.0).state == Lifecycle.WAITING
    limited = replace(step_once(record, snapshot(record, Lifecycle.RUNNING, containers=3), 110.0), time_limit_s=60.0)
    assert step_once(limited, snapshot(record, Lifecycle.RUNNING, containers=3), 169.0).ending == Ending.NONE
    over = step_once(limited, snapshot(record, Lifecycle.RUNNING, containers=3), 171.0)
    assert step_once(over, snapshot(record, Lifecycle.STOPPED), 172.0).state == Lifecycle.FAILED


def test_strays_are_applications_of_no_living_launch() -> None:
    run, over = Lifecycle.RUNNING, Lifecycle.FINISHED
    seen = EngineSnapshot(
        {
            "t-1": (SeenApplication("a", run), SeenApplication("b", run)),
            "t-2": (SeenApplication("c", run), SeenApplication("d", over)),
            "t-3": (SeenApplication("e", run), SeenApplication("f", run)),
        }
    )
    assert sorted(stray_applications(seen, {"t-1": "", "t-3": "f"})) == ["b", "c", "e"]
    assert list(stray_applications(SILENT, {})) == []


def test_each_state_change_is_reported_once() -> None:
    waiting = JobRecord(7, (TRAIN,))
    record = begin_try(waiting, PREFIX, 100.0).record
    assert [(task, state) for task, state, _ in state_changes(waiting, record)] == [
        ("", Lifecycle.STARTING),
        ("train", Lifecycle.WAITING),
    ]
    assert list(state_changes(record, step_once(record, EMPTY))) == []


def test_stronger_ending_does_not_restart_the_grace_period() -> None:
    record = step_once(placed(), snapshot(placed(), Lifecycle.RUNNING, containers=3))
    preempted = begin_ending(record, Ending.PREEMPTED, "for x-1", 110.0)
    cancelled = begin_ending(preempted, Ending.CANCELLED, "by alice", 110.0 + USUAL_GRACE_S - 1)
    seen = snapshot(record, Lifecycle.RUNNING, containers=3)
    before = step(cancelled, seen, PREFIX, 110.0 + USUAL_GRACE_S - 0.5)
    assert (before.ask, before.kill) == ((f"app-{record.launches[0].tag}",), ())
    after = step(cancelled, seen, PREFIX, 110.0 + USUAL_GRACE_S)
    assert (after.ask, after.kill) == ((), before.ask)


@pytest.mark.parametrize("ending", [Ending.PREEMPTED, Ending.PAUSED, Ending.CANCELLED, Ending.NOT_FILLED])
def test_each_ending_has_its_own_grace_period_before_the_kill(ending: Ending) -> None:
    record = step_once(placed(), snapshot(placed(), Lifecycle.RUNNING, containers=3))
    ends = begin_ending(record, ending, "why", 110.0)
    grace_s = GRACE_S.get(ending, USUAL_GRACE_S)
    seen = snapshot(record, Lifecycle.RUNNING, containers=3)
    assert step(ends, seen, PREFIX, 110.0 + grace_s).kill
    if grace_s:
        before_kill = step(ends, seen, PREFIX, 110.0 + grace_s - 0.5)
        assert before_kill.ask and not before_kill.kill


def test_pending_submission_is_withdrawn_until_the_ending_is_complete() -> None:
    record = placed()
    tag = record.launches[0].tag
    under_way = EngineSnapshot({}, frozenset({tag}))
    ends = begin_ending(record, Ending.CANCELLED, "by alice", 110.0)
    for now in (110.0, 110.0 + USUAL_GRACE_S, 110.0 + 5 * USUAL_GRACE_S):
        assert step(ends, under_way, PREFIX, now).withdraw == (tag,)


def test_time_limits_are_exceeded_only_after_their_last_second() -> None:
    tag = placed().launches[0].tag
    at_submission_limit = step(placed(), EngineSnapshot({}, frozenset({tag})), PREFIX, 100.0 + SUBMIT_S)
    assert at_submission_limit.record.ending == Ending.NONE
    short = step_once(placed(), snapshot(placed(), Lifecycle.RUNNING, containers=2), 110.0)
    assert step_once(short, snapshot(short, Lifecycle.RUNNING, containers=2), 110.0 + FILL_S).ending == Ending.NONE
    running = replace(
        step_once(placed(), snapshot(placed(), Lifecycle.RUNNING, containers=3), 110.0), time_limit_s=60.0
    )
    assert step_once(running, snapshot(running, Lifecycle.RUNNING, containers=3), 170.0).ending == Ending.NONE


def test_try_that_ran_resets_the_count_of_failed_submissions() -> None:
    record = replace(placed(), failed_submissions=2)
    waiting = step_once(record, snapshot(record, Lifecycle.STARTING))
    assert waiting.failed_submissions == 2
    assert step_once(waiting, snapshot(record, Lifecycle.RUNNING, containers=3)).failed_submissions == 0


def test_resumed_job_has_the_cause_of_its_resumption() -> None:
    record = step_once(placed(), snapshot(placed(), Lifecycle.RUNNING, containers=3))
    pausing = begin_ending(record, Ending.PAUSED, "paused by bob", 110.0)
    hasty = resume(pausing, "resumed by ann")
    assert (hasty.ending, hasty.cause) == (Ending.PREEMPTED, "resumed by ann")
    paused = step_once(pausing, snapshot(record, Lifecycle.STOPPED), 120.0)
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
def test_cause_of_a_failed_job_names_the_task_and_how_it_ended(state: Lifecycle, cause: str) -> None:
    record = step_once(placed(), snapshot(placed(), Lifecycle.RUNNING, containers=3))
    assert step_once(record, snapshot(record, state, why="boom")).cause == cause


def test_ended_launches_are_dropped_once_none_of_their_applications_runs() -> None:
    run, finished = Lifecycle.RUNNING, Lifecycle.FINISHED
    seen = EngineSnapshot(
        {
            "ended": (SeenApplication("a", finished), SeenApplication("b", Lifecycle.FAILED)),
            "half": (SeenApplication("c", finished), SeenApplication("d", run)),
            "living": (SeenApplication("e", finished),),
            "again": (SeenApplication("f", finished),),
        },
        submitting=frozenset({"again"}),
        refused={"refused": "no such queue", "again": "no such queue"},
    )
    assert sorted(ended_tags(seen, {"living": "e"})) == ["ended", "refused"]
    assert list(ended_tags(SILENT, {})) == []


@pytest.mark.parametrize(
    ("stronger", "weaker"),
    [
        (Ending.CANCELLED, Ending.PAUSED),
        (Ending.PAUSED, Ending.TIME_LIMIT),
        (Ending.TIME_LIMIT, Ending.FAILED),
        (Ending.FAILED, Ending.NOT_SUBMITTED),
        (Ending.NOT_SUBMITTED, Ending.NOT_FILLED),
        (Ending.NOT_FILLED, Ending.PREEMPTED),
    ],
)
def test_more_lasting_ending_wins_and_a_repeated_one_changes_nothing(stronger: Ending, weaker: Ending) -> None:
    record = begin_ending(placed(), weaker, "first", 110.0)
    assert (record.state, record.ending, record.cause) == (Lifecycle.CLOSING, weaker, "first")
    assert begin_ending(record, weaker, "again", 111.0) == begin_ending(record, Ending.NONE, "no end", 111.0) == record
    after = begin_ending(record, stronger, "second", 112.0)
    assert (after.ending, after.cause, after.ending_since_s) == (stronger, "second", 110.0)
    assert begin_ending(after, weaker, "third", 113.0) == after


@pytest.mark.parametrize("state", [Lifecycle.WAITING, Lifecycle.PAUSED])
def test_job_that_is_not_running_is_cancelled_at_once(state: Lifecycle) -> None:
    record = replace(JobRecord(7, (TRAIN,)), state=state, cause="before")
    cancelled = begin_ending(record, Ending.CANCELLED, "by alice", 5.0)
    assert cancelled == replace(record, state=Lifecycle.CANCELLED, cause="by alice", ended_s=5.0)


def test_waiting_job_is_paused_at_once_and_other_endings_do_not_apply() -> None:
    waiting = JobRecord(7, (TRAIN,))
    paused = begin_ending(waiting, Ending.PAUSED, "by bob", 5.0)
    assert paused == replace(waiting, state=Lifecycle.PAUSED, cause="by bob")
    assert begin_ending(paused, Ending.PAUSED, "by ann", 6.0) == paused
    for ending in (Ending.PREEMPTED, Ending.FAILED, Ending.TIME_LIMIT, Ending.NOT_FILLED):
        assert begin_ending(waiting, ending, "nothing runs", 6.0) == waiting


def closing(ending: Ending, **more: int) -> JobRecord:
    record = replace(placed(TRAIN, TaskRule("eval")), **more)
    record = step_once(record, snapshot(record, Lifecycle.RUNNING, Lifecycle.RUNNING, containers=3), 105.0)
    return begin_ending(record, ending, "because", 110.0)


@pytest.mark.parametrize(
    ("ending", "before", "after"),
    [
        (Ending.CANCELLED, {}, {"state": Lifecycle.CANCELLED, "ended_s": 120.0}),
        (Ending.PAUSED, {}, {"state": Lifecycle.PAUSED}),
        (Ending.PREEMPTED, {"preemptions": 4}, {"state": Lifecycle.WAITING, "preemptions": 5}),
        (Ending.NOT_FILLED, {"retries": 1}, {"state": Lifecycle.WAITING}),
        (Ending.NOT_SUBMITTED, {}, {"state": Lifecycle.WAITING, "failed_submissions": 1}),
        (Ending.FAILED, {"retries": 2}, {"state": Lifecycle.WAITING, "retries": 1}),
        (Ending.FAILED, {"retries": 1}, {"state": Lifecycle.WAITING, "retries": 0}),
        (Ending.FAILED, {"retries": 0}, {"state": Lifecycle.FAILED, "ended_s": 120.0}),
        (Ending.TIME_LIMIT, {"retries": 1}, {"state": Lifecycle.FAILED, "ended_s": 120.0}),
    ],
)
def test_closed_job_enters_the_state_of_its_ending_and_keeps_its_cause(
    ending: Ending, before: dict[str, int], after: dict[str, object]
) -> None:
    record = closing(ending, **before)
    over = step_once(record, snapshot(record, Lifecycle.STOPPED, Lifecycle.STOPPED), 120.0)
    expected = replace(record, ending=Ending.NONE, launches=over.launches, **after)  # type: ignore[arg-type]
    assert over == expected and over.cause == "because"
    launches = Lifecycle.CANCELLED if ending == Ending.CANCELLED else Lifecycle.STOPPED
    assert [launch.state for launch in over.launches] == [launches, launches]


@pytest.mark.parametrize(("failed", "state"), [(2, Lifecycle.WAITING), (3, Lifecycle.FAILED)])
def test_job_fails_after_three_failed_submissions(failed: int, state: Lifecycle) -> None:
    record = replace(begin_ending(placed(), Ending.NOT_SUBMITTED, "because", 110.0), failed_submissions=failed)
    assert step_once(record, snapshot(record, Lifecycle.STOPPED), 120.0).state == state


@pytest.mark.parametrize("ending", [Ending.NONE, Ending.PREEMPTED])
def test_job_whose_tasks_finished_is_finished_despite_a_requested_ending(ending: Ending) -> None:
    record = begin_ending(placed(), ending, "for x-1", 105.0)
    over = step_once(record, snapshot(record, Lifecycle.FINISHED), 120.0)
    assert (over.state, over.cause, over.ended_s) == (Lifecycle.FINISHED, "all tasks have finished", 120.0)
    assert over.ending is Ending.NONE


def test_task_that_fails_without_a_reason_has_a_default_cause() -> None:
    record = step_once(placed(), snapshot(placed(), Lifecycle.RUNNING, containers=3))
    failed = step(record, snapshot(record, Lifecycle.FAILED), PREFIX, 130.0).record
    assert failed.cause == "task train failed: no reason given" and failed.state == Lifecycle.FAILED
    two = closing(Ending.NONE)
    failing = step_once(two, snapshot(two, Lifecycle.FAILED, Lifecycle.RUNNING), 130.0)
    assert (failing.ending, failing.ending_since_s) == (Ending.FAILED, 130.0)


def test_launch_has_a_cause_only_after_its_application_has_ended() -> None:
    record = placed()
    running = step_once(record, snapshot(record, Lifecycle.RUNNING, containers=3, why="queued at first"), 105.0)
    (launch,) = running.launches
    assert (launch.cause, launch.state, launch.containers, launch.seen_s) == ("", Lifecycle.RUNNING, 3, 105.0)
    assert launch.application_id == f"app-{launch.tag}" and launch.unseen_since_s is None
    (launch,) = step_once(running, snapshot(record, Lifecycle.FAILED, why="boom"), 120.0).launches
    assert (launch.cause, launch.seen_s) == ("boom", 105.0)


def test_relaunch_records_the_new_launch_and_keeps_the_previous_one() -> None:
    record = placed(TRAIN, TaskRule("eval", relaunch=True), TaskRule("more"), retries=1)
    states = [Lifecycle.RUNNING, Lifecycle.RUNNING, Lifecycle.RUNNING]
    record = step_once(record, snapshot(record, *states, containers=3))
    again = step(
        record, snapshot(record, states[0], Lifecycle.FAILED, states[2], containers=3, why="boom"), PREFIX, 130.0
    )
    (launch,) = again.submit
    assert (launch.task, launch.number, launch.intended_s, launch.state) == ("eval", 2, 130.0, Lifecycle.WAITING)
    assert [(one.task, one.number) for one in again.record.launches] == [
        ("train", 1), ("eval", 1), ("more", 1), ("eval", 2),
    ]  # fmt: skip
    seen = step_once(again.record, snapshot(again.record, *states, containers=3), 140.0)
    assert [(one.task, one.number) for one in seen.newest] == [("train", 1), ("eval", 2), ("more", 1)]
    replaced = record.changed(replace(record.launches[1], cause="other"))
    assert [one.cause for one in replaced.launches] == ["", "other", ""]
    assert replaced.launches[::2] == record.launches[::2]


def test_job_with_a_task_without_application_is_ended_and_names_the_task() -> None:
    record = replace(placed(TRAIN, TaskRule("eval")), launches=placed(TRAIN, TaskRule("eval")).launches[:1])
    ending = step(record, snapshot(record, Lifecycle.RUNNING), PREFIX, 150.0).record
    assert (ending.ending, ending.ending_since_s) == (Ending.NOT_SUBMITTED, 150.0)
    assert ending.cause == "no application of task eval is recorded"


def test_lost_submission_of_one_task_ends_the_other_tasks() -> None:
    record = placed(TRAIN, TaskRule("eval"))
    seen = EngineSnapshot({record.launches[1].tag: (SeenApplication("app", Lifecycle.RUNNING),)})
    record = step_once(record, seen, 200.0)
    lost = step(record, seen, PREFIX, 200.0 + SETTLE_S)
    assert (lost.record.ending, lost.record.ending_since_s, lost.ask) == (Ending.NOT_SUBMITTED, 210.0, ("app",))
    assert lost.record.cause == "the service ended before the application was submitted"


def test_exceeded_time_limit_is_stated_and_ends_the_job_in_order() -> None:
    starting = step_once(placed(), snapshot(placed(), Lifecycle.RUNNING, containers=2), 110.0)
    limited = replace(starting, time_limit_s=60.0)
    assert step_once(limited, snapshot(limited, Lifecycle.RUNNING, containers=2), 500.0).ending == Ending.NOT_FILLED
    assert (
        step_once(limited, snapshot(limited, Lifecycle.RUNNING, containers=2), 180.0).ending == Ending.NONE
    )  # not running
    running = step_once(limited, snapshot(limited, Lifecycle.RUNNING, containers=3), 110.0)
    over = step(running, snapshot(running, Lifecycle.RUNNING, containers=3), PREFIX, 170.5)
    assert (over.record.ending, over.record.cause) == (Ending.TIME_LIMIT, "the time limit of 60 s is over")
    assert over.record.ending_since_s == 170.5 and over.ask and not over.kill
    unlimited = replace(running, time_limit_s=None)
    assert step_once(unlimited, snapshot(running, Lifecycle.RUNNING, containers=3), 1e9).ending == Ending.NONE


def test_exceeded_allocation_or_submission_time_is_stated_in_the_cause() -> None:
    record = step_once(placed(), snapshot(placed(), Lifecycle.RUNNING, containers=2), 110.0)
    short = step_once(record, snapshot(record, Lifecycle.RUNNING, containers=2), 290.5)
    assert (short.ending, short.ending_since_s) == (Ending.NOT_FILLED, 290.5)
    assert short.cause == "the cluster did not allocate all containers within 180 s"
    tag = placed().launches[0].tag
    late = step_once(placed(), EngineSnapshot({}, frozenset({tag})), 1000.5)
    assert (late.cause, late.ending_since_s) == ("task train was not submitted within 900 s", 1000.5)


def test_ending_and_released_slots_are_reported_as_changes() -> None:
    record = placed()
    assert list(state_changes(record, begin_ending(record, Ending.PREEMPTED, "for x-1", 110.0))) == [
        ("", Lifecycle.CLOSING, "for x-1")
    ]
    shrinking = replace(record, slots=(2,), shrinking_since_s=110.0, cause="for x-1")
    done = replace(shrinking, shrinking_since_s=0.0, cause="given back")
    assert list(state_changes(record, shrinking)) == [("", Lifecycle.STARTING, "for x-1")]
    assert list(state_changes(shrinking, replace(shrinking, shrinking_since_s=111.0))) == []
    assert list(state_changes(shrinking, done)) == [("", Lifecycle.STARTING, "given back")]
    over = replace(done, state=Lifecycle.FINISHED)
    assert list(state_changes(over, replace(over, slots=()))) == []


CHIEF, SERVER = TaskRule("train"), TaskRule("server", ends_with="train")
RUNNING, FINISHED, FAILED, STOPPED = Lifecycle.RUNNING, Lifecycle.FINISHED, Lifecycle.FAILED, Lifecycle.STOPPED


def test_task_is_ended_with_the_one_that_it_ends_with_and_the_job_is_finished() -> None:
    record = placed(CHIEF, SERVER)
    record = step_once(record, snapshot(record, RUNNING, RUNNING))
    running = step(record, snapshot(record, RUNNING, RUNNING), PREFIX, 150.0)
    assert running.ask == running.kill == ()
    server = f"app-{record.launches[1].tag}"
    closing = step(record, snapshot(record, FINISHED, RUNNING), PREFIX, 200.0)
    assert (closing.ask, closing.kill, closing.record.state) == ((server,), (), RUNNING)
    assert closing.record.cause == "task train has finished, and with it ends: server"
    late = step(closing.record, snapshot(record, FINISHED, RUNNING), PREFIX, 200.0 + CLOSING_S)
    assert (late.ask, late.kill) == ((), (server,))
    ended = step(late.record, snapshot(record, FINISHED, STOPPED, why="killed"), PREFIX, 240.0).record
    assert (ended.state, ended.ended_s) == (FINISHED, 240.0)
    assert ended.cause == "all tasks have finished; server ended with the task that is named in the job file"
    assert (ended.newest[1].state, ended.newest[1].cause) == (STOPPED, "ended with task train")


@pytest.mark.parametrize("rule", [SERVER, replace(SERVER, relaunch=True)])
def test_failure_of_a_task_that_ends_with_another_counts_unless_that_one_finishes_soon(rule: TaskRule) -> None:
    record = placed(CHIEF, rule)
    record = step_once(record, snapshot(record, RUNNING, RUNNING))
    waits = step_once(record, snapshot(record, RUNNING, FAILED, why="connection lost"), 200.0)
    waits = step_once(waits, snapshot(record, RUNNING, FAILED), 199.0 + CHIEF_S)
    assert (waits.state, waits.ending) == (RUNNING, Ending.NONE)
    finished = step_once(waits, snapshot(record, FINISHED, FAILED), 199.5 + CHIEF_S)
    assert finished.state == FINISHED and finished.newest[1].state == FAILED
    failing = step_once(waits, snapshot(record, RUNNING, FAILED), 200.0 + CHIEF_S)
    assert failing.ending == Ending.FAILED and "server failed: connection lost" in failing.cause


def test_failed_task_that_ends_with_another_is_relaunched_only_while_that_one_runs() -> None:
    record = placed(CHIEF, replace(SERVER, relaunch=True), retries=1)
    record = step_once(record, snapshot(record, RUNNING, RUNNING))
    again = step(record, snapshot(record, RUNNING, FAILED), PREFIX, 200.0)
    assert [launch.task for launch in again.submit] == ["server"] and again.record.retries == 0
    done = step(record, snapshot(record, FINISHED, FAILED), PREFIX, 200.0)
    assert done.submit == () and done.record.state == FINISHED


def test_submission_of_a_task_that_ends_with_a_finished_one_is_withdrawn() -> None:
    record = placed(CHIEF, SERVER)
    tag = record.launches[1].tag
    seen = replace(snapshot(record, FINISHED), submitting=frozenset({tag}))
    closing = step(record, seen, PREFIX, 150.0)
    assert closing.withdraw == (tag,) and closing.ask == ()
    done = step_once(closing.record, replace(snapshot(record, FINISHED), refused={tag: "withdrawn"}), 150.0 + SETTLE_S)
    assert done.state == RUNNING or done.state == Lifecycle.STARTING
    done = step_once(done, replace(snapshot(record, FINISHED), refused={tag: "withdrawn"}), 151.0 + 2 * SETTLE_S)
    assert done.state == FINISHED


def test_other_tasks_continue_when_a_task_ends_that_is_not_theirs() -> None:
    record = placed(CHIEF, SERVER, TaskRule("evaluate"))
    record = step_once(record, snapshot(record, RUNNING, RUNNING, RUNNING))
    closing = step(record, snapshot(record, FINISHED, RUNNING, RUNNING), PREFIX, 200.0)
    assert closing.ask == (f"app-{record.launches[1].tag}",)
    rest = step_once(closing.record, snapshot(record, FINISHED, STOPPED, RUNNING), 210.0)
    assert rest.state == RUNNING
    failed = step_once(rest, snapshot(record, FINISHED, STOPPED, FAILED), 220.0)
    assert (failed.state, failed.cause) == (FAILED, "task evaluate failed: no reason given")
