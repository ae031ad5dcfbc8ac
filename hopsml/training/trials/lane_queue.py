"""Decides what a lane does next: its trials, and the one process at a time that runs them; pure.

    told RunTrial ──▶ waiting ──▶ given ──▶ current ──▶ its TrialEnded
                                              │ told stop or pause: passed on; killed at its deadline
                                              └ the runner is gone: "died"

The runner is used again and again, and gets the next trial while it is at work on one. It is replaced after a trial that
failed or left something running, and before and behind one that wants a process of its own; then the next one is made while
that one is at work.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

import msgspec

from hopsml.search.messages import EndTrial, GoOn, RunTrial, ToLane, TrialBegan, TrialEnded, TrialReported

LEAVE_S = 5.0  # for the exit functions of a runner that shall go
MOST_AHEAD = 1 << 16  # bytes: a runner that is at work takes no more from its socket than that has room for
PER_SECOND = 50.0  # reports of a trial that are sent to the driver; the last one always
AT_ONCE = 50.0  # size of the token bucket
MOST_WAITING = 32


class Worn(msgspec.Struct, frozen=True, tag_field="kind", tag="worn"):
    """Runner -> lane, before a trial's end: this process must not run another trial, and exits by itself."""

    reason: str


FromRunner = TrialBegan | TrialReported | TrialEnded | Worn


class RunnerState(Enum):
    """State of the process that runs the trials."""

    NONE = "none"
    USED = "used"
    LEAVING = "leaving"


# ---------------------------------------------------------------------------------------------------- actions


@dataclass(frozen=True)
class StartRunner:
    """Start a runner, or take the prepared one; it exists when the next action is carried out."""


@dataclass(frozen=True)
class PrepareRunner:
    """Start the next runner ahead of time, while this one is at work; the next ``StartRunner`` takes it."""


@dataclass(frozen=True)
class Give:
    """Send this message to the runner."""

    message: ToLane


@dataclass(frozen=True)
class LetRunnerGo:
    """Close the connection to the runner, which then exits."""


@dataclass(frozen=True)
class KillRunner:
    """Kill the runner and its whole process group."""


@dataclass(frozen=True)
class Say:
    """Send this message to the driver."""

    message: TrialBegan | TrialReported | TrialEnded


@dataclass(frozen=True)
class Leave:
    """End the lane's process: no trial is left and no runner exists."""


Action = StartRunner | PrepareRunner | Give | LetRunnerGo | KillRunner | Say | Leave


@dataclass
class LaneQueue:
    """The state of one lane. Every method is an event and returns actions; ``now`` is monotonic seconds."""

    runner: RunnerState = RunnerState.NONE
    waiting: deque[RunTrial] = field(default_factory=deque)
    current: RunTrial | None = None
    ahead: RunTrial | None = None  # sent to the runner, which runs it after the current one
    ahead_ended: EndTrial | None = None  # a request for ``ahead``; only the runner knows whether it came in time
    ended: EndTrial | None = None  # what the current trial was told
    began: float | None = None
    kill_at: float | None = None
    killed: str = ""  # why
    closing: bool = False

    def told(self, message: ToLane, now: float) -> list[Action]:
        """The driver has sent a trial, asks one to end, or lets one that waits for a verdict go on."""
        if isinstance(message, RunTrial):
            self.waiting.append(message)
            return self._go_on(now)
        current = self.current
        if current is not None and _same(current, message):
            return [Give(message)] if isinstance(message, GoOn) else self._end_current(message, now)
        if isinstance(message, GoOn):
            return []
        if self.ahead is not None and _same(self.ahead, message):
            self.ahead_ended = message
            return [Give(message)]
        for trial in self.waiting:
            if _same(trial, message):
                self.waiting.remove(trial)
                return [Say(TrialEnded(trial.number, trial.attempt, "withdrawn"))]
        return []  # it has ended: the driver is about to read that

    def _end_current(self, message: EndTrial, now: float) -> list[Action]:
        if message.how == "withdraw":  # too late: it runs, and its end will be reported
            return []
        self._mark_end(message, now)
        return [Give(message)]

    def _mark_end(self, message: EndTrial, now: float) -> None:
        self.ended = message
        if message.deadline_s > 0:
            self.kill_at = now + message.deadline_s
            self.killed = f"it did not end within {message.deadline_s:g} s after it was told to {message.how}"

    def closed(self, now: float) -> list[Action]:
        """The driver sends nothing more: the running trial is finished, waiting ones are not begun."""
        self.closing = True
        self.waiting.clear()
        ahead = self.ahead
        actions: list[Action] = [Give(EndTrial(ahead.number, ahead.attempt, "withdraw"))] if ahead is not None else []
        return actions + self._go_on(now)

    def heard(self, message: FromRunner, now: float) -> list[Action]:
        """The runner has sent a message."""
        current = self.current
        if isinstance(message, Worn):
            self.runner = (
                RunnerState.LEAVING
            )  # its time to leave begins behind the end of its trial, which is about to come
            return []
        if current is None or not _same(current, message):
            return []  # of a trial whose end was reported already
        if isinstance(message, TrialBegan):
            self.began = now
        if not isinstance(message, TrialEnded):
            return [Say(message)]
        if message.how == "failed" or current.isolated or self.runner is RunnerState.LEAVING:
            self._expect_to_leave(now)
        else:
            self.kill_at = None
        self.current = self.ended = None
        return [Say(message), *self._take_up(now), *self._go_on(now)]

    def _take_up(self, now: float) -> list[Action]:
        """After a trial's end go on with the one sent ahead; a runner that exits has not begun it, so it waits again."""
        ahead, told, self.ahead, self.ahead_ended = self.ahead, self.ahead_ended, None, None
        if ahead is None:
            return []
        if self.runner not in (RunnerState.LEAVING, RunnerState.NONE):
            self.current, self.began = ahead, now
            if told is not None and told.how != "withdraw":
                self._mark_end(told, now)
        elif told is not None:
            return [Say(TrialEnded(ahead.number, ahead.attempt, "withdrawn"))]
        else:
            self.waiting.appendleft(ahead)
        return []

    def _expect_to_leave(self, now: float) -> None:
        self.runner = RunnerState.LEAVING
        self.kill_at, self.killed = now + LEAVE_S, f"its process did not leave within {LEAVE_S:g} s"

    def gone(self, how: str, checkpoint_step: int, now: float) -> list[Action]:
        """The runner has exited; ``how``: in words. ``checkpoint_step``: of the newest checkpoint of its trial."""
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
        return [Say(end), *actions, *self._go_on(now)]

    def tick(self, now: float) -> list[Action]:
        """Time has passed: kill a runner that has outstayed its deadline."""
        if self.kill_at is None or now < self.kill_at:
            return []
        self.kill_at = None
        self.runner = RunnerState.LEAVING  # its trial's end may still be on the way: nothing more is given to it then
        return [KillRunner()]

    def _go_on(self, now: float) -> list[Action]:
        if self.runner is RunnerState.LEAVING:
            return []  # until ``gone``: trials of one slot never run beside each other
        if self.current is not None:
            return self._give_ahead()
        if self.closing:
            return [Leave()] if self.runner is RunnerState.NONE else self._replace(now)
        if not self.waiting:
            return []
        if self.waiting[0].isolated and self.runner is RunnerState.USED:
            return self._replace(now)
        actions: list[Action] = [StartRunner()] if self.runner is RunnerState.NONE else []
        self.current, self.runner, self.began = self.waiting.popleft(), RunnerState.USED, now
        self.kill_at, self.killed = None, ""
        following: list[Action] = [PrepareRunner()] if self.current.isolated else self._give_ahead()
        return [*actions, Give(self.current), *following]

    def _give_ahead(self) -> list[Action]:
        """Send the runner one further trial, so that it need not wait for this process between two trials."""
        if self.current is None or self.ahead is not None or not self.waiting:
            return []
        following = self.waiting[0]
        if self.current.isolated or following.isolated or len(following.config) > MOST_AHEAD:
            return []
        self.ahead = self.waiting.popleft()
        return [Give(self.ahead)]

    def _replace(self, now: float) -> list[Action]:
        self._expect_to_leave(now)
        return [LetRunnerGo()]


def _same(trial: RunTrial, message: EndTrial | GoOn | TrialBegan | TrialReported | TrialEnded) -> bool:
    return (trial.number, trial.attempt) == (message.number, message.attempt)


@dataclass
class Thinner:
    """Rate limit for the reports of one trial: few are all passed on, of many in a short time a sample.

    A step that is reported again before it has been passed on is one report, with the newest values. Of a flood the driver
    sees steps that are less than a second old; a rung that is not among them counts as reached at the next one.
    """

    allowance: float = AT_ONCE
    at: float = 0.0
    waiting: dict[int, TrialReported] = field(default_factory=dict)

    def offer(self, report: TrialReported, now: float) -> list[TrialReported]:
        """Take a report; returns those that are to be sent to the driver now."""
        before = self.waiting.get(report.step)
        if before is not None:
            report = msgspec.structs.replace(report, metrics={**before.metrics, **report.metrics})
        self.waiting[report.step] = report
        due = self.due(now)
        if len(self.waiting) > MOST_WAITING:
            steps = list(self.waiting)
            for step in steps[1:-1:2]:
                del self.waiting[step]
        return due

    def due(self, now: float) -> list[TrialReported]:
        """The waiting reports that the rate limit allows to send now."""
        self.allowance = min(AT_ONCE, self.allowance + (now - self.at) * PER_SECOND)
        self.at = now
        passed: list[TrialReported] = []
        while self.waiting and self.allowance >= 1.0 - 1e-6:  # times are rounded
            self.allowance -= 1.0
            passed.append(self.waiting.pop(next(iter(self.waiting))))
        return passed

    def next_at(self) -> float | None:
        """When the next waiting report may be sent (same clock as ``now``); None when none waits."""
        return self.at + max(0.0, 1.0 - self.allowance) / PER_SECOND if self.waiting else None

    def rest(self) -> list[TrialReported]:
        """All waiting reports, whatever the rate limit: the trial has ended."""
        left = list(self.waiting.values())
        self.waiting.clear()
        return left
