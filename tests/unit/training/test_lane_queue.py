"""Tests of a lane's next action and forwarded reports: rules, then invariants over random sequences."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hopsml.search.messages import EndTrial, RunTrial, TrialBegan, TrialEnded, TrialReported
from hopsml.training.trials import lane_queue
from hopsml.training.trials.lane_queue import (
    AT_ONCE,
    LEAVE_S,
    MOST_WAITING,
    PER_SECOND,
    CloseRunnerConnection,
    ExitLane,
    KillRunner,
    LaneQueue,
    PrepareRunner,
    ReportRateLimit,
    RunnerRetired,
    RunnerState,
    SendReport,
    SendToRunner,
    StartRunner,
)

pytestmark = pytest.mark.fast


def trial(number: int, isolated: bool = False) -> RunTrial:
    return RunTrial(number, 0, trial_id=f"t{number}", config=b"", isolated=isolated)


def ended(number: int, how: str = "finished") -> TrialEnded:
    return TrialEnded(number, 0, how)


def test_lane_runs_consecutive_trials_in_one_process():
    queue = LaneQueue()
    assert queue.handle_driver_message(trial(0), 0.0) == [StartRunner(), SendToRunner(trial(0))]
    assert queue.handle_driver_message(trial(1), 0.1) == [SendToRunner(trial(1))]  # ahead
    assert queue.handle_runner_message(TrialBegan(0, 0, pid=5), 0.1) == [SendReport(TrialBegan(0, 0, pid=5))]
    assert queue.handle_runner_message(ended(0), 0.2) == [SendReport(ended(0))]
    assert queue.handle_runner_message(ended(1), 0.3) == [SendReport(ended(1))]
    assert queue.handle_driver_message(trial(2), 0.4) == [SendToRunner(trial(2))]


@pytest.mark.parametrize("how", ["failed", "worn", "isolated"])
def test_lane_replaces_a_runner_that_must_not_be_reused_before_the_next_trial(how: str):
    queue = LaneQueue()
    queue.handle_driver_message(trial(0, isolated=how == "isolated"), 0.0)
    queue.handle_driver_message(trial(1), 0.0)
    if how == "worn":
        assert queue.handle_runner_message(RunnerRetired("threads"), 0.1) == []
    end = ended(0, "failed" if how == "failed" else "finished")
    assert queue.handle_runner_message(end, 0.1) == [SendReport(end)]
    assert queue.handle_runner_exit("exit status 0", -1, 0.2) == [StartRunner(), SendToRunner(trial(1))]


def test_retirement_deadline_starts_when_the_end_of_the_trial_is_read():
    queue = LaneQueue()
    queue.handle_driver_message(trial(0), 0.0)
    queue.handle_runner_message(RunnerRetired("threads"), 0.1)
    assert queue.tick(100.0) == []  # lane and runner may have stood still between the two messages
    assert queue.handle_runner_message(ended(0), 100.0) == [SendReport(ended(0))]
    assert queue.tick(100.0 + LEAVE_S - 0.01) == []
    assert queue.tick(100.0 + LEAVE_S) == [KillRunner()]


def test_runner_that_does_not_exit_is_killed():
    queue = LaneQueue()
    queue.handle_driver_message(trial(0, isolated=True), 0.0)
    queue.handle_runner_message(ended(0), 0.1)
    assert queue.tick(0.1 + LEAVE_S - 0.01) == []
    assert queue.tick(0.1 + LEAVE_S) == [KillRunner()]
    assert queue.handle_runner_exit("signal 9", -1, 6.0) == []


def test_isolated_trial_runs_in_a_fresh_process():
    queue = LaneQueue()
    queue.handle_driver_message(trial(0), 0.0)
    queue.handle_runner_message(ended(0), 0.1)
    assert queue.handle_driver_message(trial(1, isolated=True), 0.2) == [CloseRunnerConnection()]
    assert queue.handle_runner_exit("exit status 0", -1, 0.3) == [
        StartRunner(),
        SendToRunner(trial(1, isolated=True)),
        PrepareRunner(),
    ]


def test_runner_exit_ends_only_its_current_trial():
    queue = LaneQueue()
    queue.handle_driver_message(trial(0), 0.0)
    queue.handle_driver_message(trial(1), 0.0)
    end, *rest = queue.handle_runner_exit("killed by signal 11", 3, 0.5)
    assert end == SendReport(TrialEnded(0, 0, "died", error="killed by signal 11", seconds=0.5, checkpoint_step=3))
    assert rest == [StartRunner(), SendToRunner(trial(1))]


@pytest.mark.parametrize(("how", "outcome"), [("stop", "stopped"), ("pause", "paused")])
def test_deadline_is_enforced_by_a_kill_and_reported_as_the_requested_outcome(how: str, outcome: str):
    queue, message = LaneQueue(), EndTrial(0, 0, how=how, deadline_s=2.0)
    queue.handle_driver_message(trial(0), 0.0)
    assert queue.handle_driver_message(message, 1.0) == [SendToRunner(message)]
    assert queue.tick(2.9) == [] and queue.tick(3.0) == [KillRunner()]
    (say,) = queue.handle_runner_exit("killed by signal 9", 7, 3.1)
    assert isinstance(say, SendReport) and isinstance(say.message, TrialEnded)
    assert say.message.how == outcome and "did not end within 2 s" in say.message.error
    assert say.message.checkpoint_step == 7


def test_runner_that_exits_before_its_deadline_is_reported_as_died():
    queue = LaneQueue()
    queue.handle_driver_message(trial(0), 0.0)
    queue.handle_driver_message(EndTrial(0, 0, how="stop"), 1.0)
    (say,) = queue.handle_runner_exit("killed by signal 11", -1, 1.1)
    assert isinstance(say, SendReport) and isinstance(say.message, TrialEnded) and say.message.how == "died"


def test_waiting_trial_is_withdrawn_and_started_trial_is_not():
    queue = LaneQueue()
    for number in range(3):
        queue.handle_driver_message(trial(number), 0.0)
    assert queue.handle_driver_message(EndTrial(2, 0, how="withdraw"), 0.1) == [
        SendReport(TrialEnded(2, 0, "withdrawn"))
    ]
    assert queue.handle_driver_message(EndTrial(1, 0, how="stop"), 0.1) == [
        SendToRunner(EndTrial(1, 0, how="stop"))
    ]  # the runner has this trial
    assert queue.handle_driver_message(EndTrial(0, 0, how="withdraw"), 0.1) == []
    assert queue.handle_driver_message(EndTrial(9, 0, how="stop"), 0.1) == []
    assert queue.handle_runner_message(ended(0), 0.2) == [SendReport(ended(0))]
    assert queue.handle_runner_message(ended(1, "withdrawn"), 0.2) == [SendReport(ended(1, "withdrawn"))]


@pytest.mark.parametrize("notified", [True, False])
def test_trial_queued_at_a_failed_runner_has_not_started(notified: bool):
    queue = LaneQueue()
    queue.handle_driver_message(trial(0), 0.0)
    queue.handle_driver_message(trial(1), 0.0)
    if notified:
        queue.handle_driver_message(EndTrial(1, 0, how="withdraw"), 0.1)
    died, *rest = queue.handle_runner_exit("killed by signal 11", -1, 0.5)
    assert isinstance(died, SendReport)
    assert rest == ([SendReport(ended(1, "withdrawn"))] if notified else [StartRunner(), SendToRunner(trial(1))])


def test_deadline_of_a_queued_trial_counts_from_its_start():
    queue = LaneQueue()
    queue.handle_driver_message(trial(0), 0.0)
    queue.handle_driver_message(trial(1), 0.0)
    queue.handle_driver_message(EndTrial(1, 0, how="stop", deadline_s=2.0), 0.1)
    assert queue.tick(5.0) == []
    queue.handle_runner_message(ended(0), 6.0)
    assert queue.tick(7.9) == [] and queue.tick(8.0) == [KillRunner()]


def test_closed_lane_finishes_the_current_trial_and_starts_no_other():
    queue = LaneQueue()
    queue.handle_driver_message(trial(0), 0.0)
    queue.handle_driver_message(trial(1), 0.0)
    withdraw = EndTrial(1, 0, how="withdraw")
    assert queue.handle_driver_closed(0.1) == [SendToRunner(withdraw)]
    assert queue.handle_runner_message(ended(0), 0.2) == [SendReport(ended(0))]
    assert queue.handle_runner_message(ended(1, "withdrawn"), 0.2) == [
        SendReport(ended(1, "withdrawn")),
        CloseRunnerConnection(),
    ]
    assert queue.handle_runner_exit("exit status 0", -1, 0.3) == [ExitLane()]
    assert LaneQueue().handle_driver_closed(0.0) == [ExitLane()]


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(
            ["run", "run", "isolated", "stop", "pause", "withdraw", "end", "end", "fail", "worn", "die", "tick"]
        ),
        st.integers(0, 20),
    ),
    max_size=50,
)


@settings(max_examples=150, deadline=None)
@given(EVENTS)
@example([("run", 0), ("run", 0), ("run", 0), ("stop", 1), ("end", 0), ("run", 0), ("tick", 0)])
def test_every_trial_ends_once_and_a_spent_runner_is_assigned_none(events: list[tuple[str, int]]) -> None:
    queue, now, count = LaneQueue(), 0.0, 0
    reported: list[int] = []  # ended trials, as reported to the driver
    runner: list[RunTrial] | None = None  # trials assigned to the process; None without a process
    spent = False

    def carry_out(actions: list[lane_queue.Action]) -> None:
        nonlocal runner, spent
        for action in actions:
            match action:
                case StartRunner():
                    assert runner is None
                    runner, spent = [], False
                case SendToRunner(RunTrial() as given):
                    assert runner is not None and not spent and (not given.isolated or not runner)
                    assert not [one for one in runner if one.number not in reported][1:], "more than one ahead"
                    runner.append(given)
                    spent = given.isolated
                case SendReport(TrialEnded() as end):
                    assert end.number not in reported
                    reported.append(end.number)
                case CloseRunnerConnection() | KillRunner():
                    spent = True

    def die() -> None:
        nonlocal runner
        runner = None
        carry_out(queue.handle_runner_exit("signal 9", -1, now))

    for what, which in events:
        now += 0.5
        if what in ("run", "isolated"):
            carry_out(queue.handle_driver_message(trial(count, what == "isolated"), now))
            count += 1
        elif what in ("stop", "pause", "withdraw"):
            carry_out(queue.handle_driver_message(EndTrial(which, 0, how=what, deadline_s=which % 3), now))
        elif what == "tick":
            carry_out(queue.tick(now))
        elif what == "die" and runner is not None:
            die()
        elif what == "worn" and queue.current is not None:
            spent = True
            carry_out(queue.handle_runner_message(RunnerRetired("threads"), now))
        elif what in ("end", "fail") and queue.current is not None:
            spent = spent or what == "fail"
            carry_out(
                queue.handle_runner_message(
                    ended(queue.current.number, "failed" if what == "fail" else "finished"), now
                )
            )
    while queue.waiting or queue.current is not None or queue.runner is RunnerState.LEAVING:
        now += 0.5
        if queue.runner is RunnerState.LEAVING and queue.current is None:
            die()
        else:
            assert queue.current is not None, "nobody works on what waits"
            carry_out(queue.handle_runner_message(ended(queue.current.number), now))
    assert sorted(reported) == list(range(count))


def report(step: int, **metrics: float) -> TrialReported:
    return TrialReported(0, 0, step, dict(metrics))


def test_moderate_report_rate_is_not_thinned():
    thinner, now, passed = ReportRateLimit(), 100.0, []
    for step in range(500):
        now += 1 / PER_SECOND
        passed += thinner.add_report(report(step), now)
    assert [one.step for one in passed] == list(range(500))


def test_reports_of_one_step_in_a_burst_are_merged_with_the_newest_values():
    thinner = ReportRateLimit()
    for step in range(int(AT_ONCE)):
        assert thinner.add_report(report(step), 100.0)
    assert thinner.add_report(report(99, loss=2.0, other=1.0), 100.0) == []
    assert thinner.add_report(report(99, loss=1.0), 100.0) == []
    assert thinner.next_due_time() == pytest.approx(100.0 + 1 / PER_SECOND)
    (late,) = thinner.pop_due_reports(100.0 + 1 / PER_SECOND)
    assert late.metrics == {"loss": 1.0, "other": 1.0} and thinner.next_due_time() is None


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 0.1)), max_size=300))
def test_thinner_forwards_the_last_report_and_respects_the_limit_at_any_rate(moves: list[tuple[int, float]]) -> None:
    thinner, now, step, passed = ReportRateLimit(), 10.0, 0, []
    for stride, pause in moves:
        now, step = now + pause, step + stride
        passed += thinner.add_report(report(step, loss=now), now)
        assert len(thinner.waiting) <= MOST_WAITING + 1
    assert len(passed) <= AT_ONCE + (now - 10.0) * PER_SECOND + 1
    passed += thinner.pop_all_reports()
    steps = [one.step for one in passed]
    assert steps == sorted(steps)
    if moves:
        assert passed[-1].step == step and passed[-1].metrics == {"loss": now}
