"""State machine of a trial slot (lane): its trials, and the one process at a time that runs them; pure.

    RunTrial received ──▶ waiting ──▶ sent to runner ──▶ current ──▶ its TrialEnded
                                                          │ stop or pause: passed on; killed at its deadline
                                                          └ the runner has exited: "died"

The runner is used repeatedly, and receives the next trial while it runs one. It is replaced after a trial that failed
or left something running, and before and after a trial that requires its own process; in that case the next runner is
started while that trial runs.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

import msgspec

from hopsml.search.messages import EndTrial, GoOn, RunTrial, ToLane, TrialBegan, TrialEnded, TrialReported

LEAVE_S = 5.0  # seconds allowed for the exit functions of a runner that must exit
MOST_AHEAD = 1 << 16  # bytes: a busy runner reads no more from its socket than its buffer holds
PER_SECOND = 50.0  # reports of a trial sent to the driver; the last one is always sent
AT_ONCE = 50.0  # size of the token bucket
MOST_WAITING = 32


class RunnerRetired(msgspec.Struct, frozen=True, tag_field="kind", tag="worn"):
    """Message from the runner before a trial's end: this process must not run another trial, and exits by itself."""

    reason: str


FromRunner = TrialBegan | TrialReported | TrialEnded | RunnerRetired


class RunnerState(Enum):
    """State of the process that runs the trials."""

    NONE = "none"
    USED = "used"
    LEAVING = "leaving"


# ---------------------------------------------------------------------------------------------------- actions


@dataclass(frozen=True)
class StartRunner:
    """Action: start a runner, or use the prepared one; it exists when the next action is carried out."""


@dataclass(frozen=True)
class PrepareRunner:
    """Action: start the next runner ahead of time, while this one is busy; the next ``StartRunner`` uses it."""


@dataclass(frozen=True)
class SendToRunner:
    """Action: send this message to the runner."""

    message: ToLane


@dataclass(frozen=True)
class CloseRunnerConnection:
    """Action: close the connection to the runner, which then exits."""


@dataclass(frozen=True)
class KillRunner:
    """Action: kill the runner and its whole process group."""


@dataclass(frozen=True)
class SendReport:
    """Action: send this message to the driver."""

    message: TrialBegan | TrialReported | TrialEnded


@dataclass(frozen=True)
class ExitLane:
    """Action: end the process of the trial slot (lane); no trial is left and no runner exists."""


Action = StartRunner | PrepareRunner | SendToRunner | CloseRunnerConnection | KillRunner | SendReport | ExitLane


@dataclass
class LaneQueue:
    """State of one trial slot (lane); every method handles an event and returns actions.

    ``now`` is monotonic time in seconds.
    """

    runner: RunnerState = RunnerState.NONE
    waiting: deque[RunTrial] = field(default_factory=deque)
    current: RunTrial | None = None
    ahead: RunTrial | None = None  # sent to the runner, which runs it after the current one
    ahead_ended: EndTrial | None = None  # a request to end ``ahead``; only the runner knows whether it arrived in time
    ended: EndTrial | None = None  # request received for the current trial
    began: float | None = None
    kill_at: float | None = None
    killed: str = ""  # the reason
    closing: bool = False

    def handle_driver_message(self, message: ToLane, now: float) -> list[Action]:
        """Handle a message of the driver: a new trial, a request to end one, or a decision to continue one."""
        if isinstance(message, RunTrial):
            self.waiting.append(message)
            return self._go_on(now)
        current = self.current
        if current is not None and _same(current, message):
            return [SendToRunner(message)] if isinstance(message, GoOn) else self._end_current(message, now)
        if isinstance(message, GoOn):
            return []
        if self.ahead is not None and _same(self.ahead, message):
            self.ahead_ended = message
            return [SendToRunner(message)]
        for trial in self.waiting:
            if _same(trial, message):
                self.waiting.remove(trial)
                return [SendReport(TrialEnded(trial.number, trial.attempt, "withdrawn"))]
        return []  # the trial has ended, and the driver is about to read that

    def _end_current(self, message: EndTrial, now: float) -> list[Action]:
        """Pass a request to end the current trial to the runner."""
        if message.how == "withdraw":  # too late: the trial runs, and its end will be reported
            return []
        self._mark_end(message, now)
        return [SendToRunner(message)]

    def _mark_end(self, message: EndTrial, now: float) -> None:
        """Record a request to end the current trial, and the deadline after which it is killed."""
        self.ended = message
        if message.deadline_s > 0:
            self.kill_at = now + message.deadline_s
            self.killed = f"it did not end within {message.deadline_s:g} s after it was told to {message.how}"

    def handle_driver_closed(self, now: float) -> list[Action]:
        """Handle the end of the driver's messages: the running trial is finished, waiting ones are not started."""
        self.closing = True
        self.waiting.clear()
        ahead = self.ahead
        actions: list[Action] = (
            [SendToRunner(EndTrial(ahead.number, ahead.attempt, "withdraw"))] if ahead is not None else []
        )
        return actions + self._go_on(now)

    def handle_runner_message(self, message: FromRunner, now: float) -> list[Action]:
        """Handle a message of the runner."""
        current = self.current
        if isinstance(message, RunnerRetired):
            self.runner = RunnerState.LEAVING  # the deadline for its exit is set at the end of its trial, which follows
            return []
        if current is None or not _same(current, message):
            return []  # of a trial whose end has been reported already
        if isinstance(message, TrialBegan):
            self.began = now
        if not isinstance(message, TrialEnded):
            return [SendReport(message)]
        if message.how == "failed" or current.isolated or self.runner is RunnerState.LEAVING:
            self._expect_to_leave(now)
        else:
            self.kill_at = None
        self.current = self.ended = None
        return [SendReport(message), *self._take_up(now), *self._go_on(now)]

    def _take_up(self, now: float) -> list[Action]:
        """Continue after a trial's end with the trial sent ahead.

        If the runner is exiting, it has not started that trial, which then waits again.
        """
        ahead, told, self.ahead, self.ahead_ended = self.ahead, self.ahead_ended, None, None
        if ahead is None:
            return []
        if self.runner not in (RunnerState.LEAVING, RunnerState.NONE):
            self.current, self.began = ahead, now
            if told is not None and told.how != "withdraw":
                self._mark_end(told, now)
        elif told is not None:
            return [SendReport(TrialEnded(ahead.number, ahead.attempt, "withdrawn"))]
        else:
            self.waiting.appendleft(ahead)
        return []

    def _expect_to_leave(self, now: float) -> None:
        """Set the deadline by which the runner must exit."""
        self.runner = RunnerState.LEAVING
        self.kill_at, self.killed = now + LEAVE_S, f"its process did not leave within {LEAVE_S:g} s"

    def handle_runner_exit(self, how: str, checkpoint_step: int, now: float) -> list[Action]:
        """Handle the exit of the runner.

        Args:
            how: description of the exit.
            checkpoint_step: step of the newest checkpoint of its trial, -1 for none.
            now: monotonic seconds.
        """
        trial, ended, killed = self.current, self.ended, self.killed if self.kill_at is None else ""
        self.runner, self.current, self.ended, self.kill_at, self.killed = RunnerState.NONE, None, None, None, ""
        actions = self._take_up(now)
        if trial is None:
            return actions + self._go_on(now)
        outcome, error = "died", how
        if ended is not None and killed:
            outcome, error = ("paused" if ended.how == "pause" else "stopped"), f"killed: {killed}"
        seconds = round(now - self.began, 6) if self.began is not None else 0.0
        end = TrialEnded(
            trial.number, trial.attempt, outcome, error=error, seconds=seconds, checkpoint_step=checkpoint_step
        )
        return [SendReport(end), *actions, *self._go_on(now)]

    def tick(self, now: float) -> list[Action]:
        """Handle the passage of time: kill a runner whose deadline has passed."""
        if self.kill_at is None or now < self.kill_at:
            return []
        self.kill_at = None
        # The end of its trial may be under way; until then nothing more is sent to it.
        self.runner = RunnerState.LEAVING
        return [KillRunner()]

    def _go_on(self, now: float) -> list[Action]:
        """Start the next trial if the runner is free for it."""
        if self.runner is RunnerState.LEAVING:
            return []  # until ``handle_runner_exit``: trials of one slot never run in parallel
        if self.current is not None:
            return self._give_ahead()
        if self.closing:
            return [ExitLane()] if self.runner is RunnerState.NONE else self._replace(now)
        if not self.waiting:
            return []
        if self.waiting[0].isolated and self.runner is RunnerState.USED:
            return self._replace(now)
        actions: list[Action] = [StartRunner()] if self.runner is RunnerState.NONE else []
        self.current, self.runner, self.began = self.waiting.popleft(), RunnerState.USED, now
        self.kill_at, self.killed = None, ""
        following: list[Action] = [PrepareRunner()] if self.current.isolated else self._give_ahead()
        return [*actions, SendToRunner(self.current), *following]

    def _give_ahead(self) -> list[Action]:
        """Send the runner one further trial, so that it need not wait for this process between two trials."""
        if self.current is None or self.ahead is not None or not self.waiting:
            return []
        following = self.waiting[0]
        if self.current.isolated or following.isolated or len(following.config) > MOST_AHEAD:
            return []
        self.ahead = self.waiting.popleft()
        return [SendToRunner(self.ahead)]

    def _replace(self, now: float) -> list[Action]:
        """Let the runner exit, so that a new one is started."""
        self._expect_to_leave(now)
        return [CloseRunnerConnection()]


def _same(trial: RunTrial, message: EndTrial | GoOn | TrialBegan | TrialReported | TrialEnded) -> bool:
    """Return True if a message belongs to this attempt of the trial."""
    return (trial.number, trial.attempt) == (message.number, message.attempt)


@dataclass
class ReportRateLimit:
    """Rate limit for the reports of one trial: a few are all passed on, of many in a short time a sample.

    A step that is reported again before it has been passed on becomes one report with the newest values. In a flood,
    the driver receives steps that are less than a second old; a rung whose step was dropped counts as reached at the
    next step received.
    """

    allowance: float = AT_ONCE
    at: float = 0.0
    waiting: dict[int, TrialReported] = field(default_factory=dict)

    def add_report(self, report: TrialReported, now: float) -> list[TrialReported]:
        """Add a report and return the reports that must be sent to the driver now."""
        before = self.waiting.get(report.step)
        if before is not None:
            report = msgspec.structs.replace(report, metrics={**before.metrics, **report.metrics})
        self.waiting[report.step] = report
        due = self.pop_due_reports(now)
        if len(self.waiting) > MOST_WAITING:
            steps = list(self.waiting)
            for step in steps[1:-1:2]:
                del self.waiting[step]
        return due

    def pop_due_reports(self, now: float) -> list[TrialReported]:
        """Return and remove the waiting reports that the rate limit allows to send now."""
        self.allowance = min(AT_ONCE, self.allowance + (now - self.at) * PER_SECOND)
        self.at = now
        passed: list[TrialReported] = []
        while self.waiting and self.allowance >= 1.0 - 1e-6:  # tolerates rounded times
            self.allowance -= 1.0
            passed.append(self.waiting.pop(next(iter(self.waiting))))
        return passed

    def next_due_time(self) -> float | None:
        """Return the time at which the next waiting report may be sent (clock of ``now``); None if none waits."""
        return self.at + max(0.0, 1.0 - self.allowance) / PER_SECOND if self.waiting else None

    def pop_all_reports(self) -> list[TrialReported]:
        """Return and remove all waiting reports regardless of the rate limit, because the trial has ended."""
        left = list(self.waiting.values())
        self.waiting.clear()
        return left
