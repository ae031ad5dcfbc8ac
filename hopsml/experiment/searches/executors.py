"""Execution of a search's actions for trials of one worker, on trial slots (lanes).

    lanes = Lanes.start(plan)                   # Plan(..., role=SearchHost()), of an independent group
    while (news := lanes.get(timeout)) ...:     # LaneJoined, LaneLost, Began, Reported, Ended, RunOver, or posted ones
        lanes.assign(lane, RunTrial(...))       # at most one trial waits behind the one that runs
        lanes.send_message(lane, EndTrial(...))
        lanes.hold_slots(count)                 # more slots, or fewer: lanes without a trial are released first
    lanes.close(value)                          # the run ends as FINISHED, lanes.run.result().value is the value

A lane is one start of one process; numbers only grow. If its process fails, the lane is lost, and its successor on the
same slot is a new lane. No decision is made in this module.
"""

from __future__ import annotations

import math
import pickle
import queue
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import cloudpickle
import msgspec

from hopsml.cluster.driver.coordinator import Coordinator
from hopsml.cluster.driver.run_state import Change
from hopsml.cluster.shared.plain import as_json
from hopsml.core import redact
from hopsml.core.callbacks import mark_immediate
from hopsml.errors import ArgumentError
from hopsml.experiment import plan as plans
from hopsml.experiment.run import Run
from hopsml.experiment.run_role import SearchHost
from hopsml.search import messages
from hopsml.search.dispatch.events import (
    AssignToLane,
    AttemptBegan,
    AttemptEnded,
    Event,
    FormGroup,
    LaneJoined,
    LaneLost,
    OtherValuesReported,
    RequestTrialEnd,
    ResizeGroup,
    SlotsChanged,
    ValuesReported,
)
from hopsml.search.messages import EndTrial, GoOn, RunTrial, ToDriver, TrialBegan, TrialEnded, TrialReported
from hopsml.search.metric import epoch_metrics, finite_or_none, name_of
from hopsml.training.trials.trial_reports import as_number, score_of

BREAK_OFF_S = 60.0  # time for a trial whose slot another job gets; after it the trial is restarted on another lane


@dataclass(frozen=True)
class RunOver:
    """End of the search's run and all lanes, by ``close`` or failure; ``error``: as ``run.result()`` raises it."""

    error: BaseException | None


@dataclass(frozen=True)
class ExecutorEvent:
    """Event for the search, with the lane's message that caused it, if any, which has all values of a report."""

    event: Event | RunOver
    lane: int = -1
    message: ToDriver | None = None


class Lanes:
    """Lanes of one run. ``post`` and ``close`` may be called from any thread, other methods from one only."""

    def __init__(self, run: Run, coordinator: Coordinator, keeps: bool = False) -> None:
        """Create it for a run that was started; ``keeps``: retain lanes until the end, as their agents store rows."""
        self.run, self._coordinator = run, coordinator
        self.joined: dict[int, str] = {}  # lanes that accept trials -> host
        self._trials: dict[int, dict[tuple[int, int], RunTrial]] = {}  # lane -> its trials, in order
        self._trial_started_at: dict[int, float] = {}  # lane -> when its newest trial began
        self._wanted: int | None = None
        self._keeps = keeps
        self._allowed: int | None = None  # number of slots granted to the search, however many it requests
        self._break_off_at = math.inf
        self._checkpoints: dict[str, int] = {}  # trial -> step of its newest checkpoint, as reported
        self._came: queue.SimpleQueue[Change | ExecutorEvent] = queue.SimpleQueue()
        run.observe(self._on_change)

    @classmethod
    def start(cls, plan: plans.Plan) -> Lanes:
        """Start the search's run; raises before anything is started if the plan cannot be carried out."""
        if not isinstance(plan.standing, SearchHost):
            raise ArgumentError(f"Plan.standing is {plan.standing!r:.80}: a plan of a search was expected")
        run, application = plans.start_with_application(plan)
        return cls(run, application.coordinator)

    # ------------------------------------------------------------------------------------------ events

    @mark_immediate
    def _on_change(self, change: Change) -> None:
        """Queue a change for ``get``; called on the coordinator's thread."""
        if change.kind in ("joined", "left", "slots", "said", "end"):
            self._came.put(change)

    def post(self, event: Event) -> None:
        """Queue an event for ``get``, such as a cancellation or a request for more trials."""
        self._came.put(ExecutorEvent(event))

    def get(self, timeout_s: float | None = None) -> ExecutorEvent | None:
        """Wait up to ``timeout_s`` seconds (None: without limit) for the next event; return None if none comes."""
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = max(0.0, min(deadline, self._break_off_at) - time.monotonic())
            try:
                change = self._came.get(timeout=left if left < math.inf else None) if left else self._came.get_nowait()
            except queue.Empty:
                if time.monotonic() >= deadline:
                    return None
                self._break_off()
                continue
            news = change if isinstance(change, ExecutorEvent) else self._read(change)
            if news is not None:
                return news

    def _read(self, change: Change) -> ExecutorEvent | None:
        match change.kind:
            case "joined":
                self.joined[change.rank], self._trials[change.rank] = change.text, {}
                return ExecutorEvent(LaneJoined(change.rank, change.text), change.rank)
            case "left":
                return self._lost(change.rank, change.text)
            case "slots":
                self._allowed = change.total
                self._release_surplus()
                return ExecutorEvent(SlotsChanged(change.total))
            case "end":
                return ExecutorEvent(RunOver(self.run.state.error))
        return self._handle_message(change.rank, messages.decode_for_driver(change.data))

    def _lost(self, lane: int, reason: str) -> ExecutorEvent | None:
        self._trials.pop(lane, None)
        self._trial_started_at.pop(lane, None)
        if self.joined.pop(lane, None) is None:  # released: its LaneLost was queued at that time
            return None
        return ExecutorEvent(LaneLost(lane, reason), lane)

    def _handle_message(self, lane: int, message: ToDriver) -> ExecutorEvent | None:
        key = message.number, message.attempt
        trial = self._trials.get(lane, {}).get(key)
        if trial is None:
            return None  # of a lane that was released or lost
        if isinstance(message, TrialBegan):
            self._trial_started_at[lane] = time.monotonic()
            return ExecutorEvent(AttemptBegan(*key), lane, message)
        if isinstance(message, TrialReported):
            searched, value = _searched(message.metrics, trial.metric)
            if searched:
                return ExecutorEvent(ValuesReported(*key, message.step, value), lane, message)
            return ExecutorEvent(OtherValuesReported(*key, message.step, tuple(message.metrics)), lane, message)
        del self._trials[lane][key]
        if message.checkpoint_step >= 0:
            self._checkpoints[trial.trial_id] = message.checkpoint_step
        self._release_surplus()
        return ExecutorEvent(_ended(trial, message), lane, message)

    # ------------------------------------------------------------------------------------------ actions

    def assign(self, lane: int, trial: RunTrial) -> None:
        """Send a trial to a lane; does nothing if the lane is lost, for which a ``LaneLost`` is queued."""
        if lane not in self.joined:
            return
        if trial.resume_from and trial.resume_step < 0:
            trial = _with_step(trial, self._checkpoints.get(trial.resume_from, -1))
        self._trials[lane][trial.number, trial.attempt] = trial
        self._coordinator.send_to_worker(self.run.run_id, lane, messages.encode(trial))

    def send_message(self, lane: int, message: EndTrial | GoOn) -> None:
        """Request a trial to stop, pause or not to start, which ``Ended`` answers, or permit it to continue."""
        if lane in self.joined:
            self._coordinator.send_to_worker(self.run.run_id, lane, messages.encode(message))

    def hold_slots(self, count: int) -> None:
        """Hold up to ``count`` slots; release surplus lanes, those without a trial now, others when theirs ends."""
        if self._keeps:
            count = max(count, self._wanted or 0)
        if count == self._wanted:
            return
        self._wanted = count
        self._coordinator.resize(self.run.run_id, count)
        self._release_surplus()

    def _release_surplus(self) -> None:
        idle = [lane for lane in self.joined if not self._trials[lane]]
        for lane in idle[: self._surplus(self._wanted, self._allowed)]:
            self._release(lane, "no longer needed")
        if not self._surplus(self._allowed):
            self._break_off_at = math.inf
        elif self._break_off_at == math.inf:
            self._break_off_at = time.monotonic() + BREAK_OFF_S

    def _surplus(self, *limits: int | None) -> int:
        """Return the number of lanes beyond the lowest of these limits."""
        return max(
            (len(self.joined) - limit for limit in limits if limit is not None and limit < len(self.joined)), default=0
        )

    def _release(self, lane: int, reason: str, at_once: bool = False) -> None:
        del self.joined[lane], self._trials[lane]
        self._coordinator.release(self.run.run_id, lane, at_once)
        self._came.put(ExecutorEvent(LaneLost(lane, reason), lane))  # queued in order, as any other loss

    def _break_off(self) -> None:
        """Release surplus lanes, first those whose trials started last; the trials are restarted elsewhere."""
        self._break_off_at = math.inf
        newest = sorted(self.joined, key=lambda lane: self._trial_started_at.get(lane, math.inf), reverse=True)
        for lane in newest[: self._surplus(self._allowed)]:
            self._release(lane, "its slot was granted to another job", at_once=True)

    def close(self, value: Any = None, reason: str = "complete") -> None:
        """End the run as FINISHED; ``value`` is recorded like a returned one."""
        self._coordinator.complete(self.run.run_id, reason, bytes(cloudpickle.dumps(value)))


def _searched(metrics: Mapping[str, Any], metric: str) -> tuple[bool, float | None]:
    """Return True if the report has the searched metric, and its value if that is a finite number."""
    name = name_of(metric, epoch_metrics(metrics))
    return name in metrics, finite_or_none(as_number(metrics.get(name)))


def _ended(trial: RunTrial, message: TrialEnded) -> AttemptEnded:
    how, error, value = message.how, message.error, None
    score: float | None = None
    if message.outputs:
        try:
            value = pickle.loads(message.outputs)
            score = None if value is None else finite_or_none(score_of(value, trial.metric))
        except Exception as problem:  # noqa: BLE001 whatever its class does here: the trial has no result
            how, value = "failed", None
            error = f"its returned value cannot be read on the driver ({type(problem).__name__}: {problem})"
    outputs = redact.record(as_json(value))
    return AttemptEnded(
        message.number,
        message.attempt,
        how,
        score,
        outputs,
        redact.text(error),
        message.seconds,
        message.lacks_metric,
        message.names,
    )


def _with_step(trial: RunTrial, step: int) -> RunTrial:
    return msgspec.structs.replace(trial, resume_step=step)


class ActionExecutor(Protocol):
    """Interface for executing the dispatch's actions; for the session's thread, except ``post``."""

    run: Run  # of the search as a whole

    def get(self, timeout_s: float | None) -> ExecutorEvent | None:
        """Return the next event; None if there is none within ``timeout_s`` seconds (None: without limit)."""

    def post(self, event: Event) -> None:
        """Queue an event for ``get``; for any thread."""

    def start_trial(self, action: AssignToLane | FormGroup) -> str:
        """Start a trial, and return where it starts, as text for people."""

    def end_trial(self, action: RequestTrialEnd) -> None:
        """Request a trial to end, in the way and within the time that the action names."""

    def continue_trial(self, news: ExecutorEvent) -> None:
        """Permit a trial whose report waits for the stopper's decision to continue."""

    def resize_trial(self, action: ResizeGroup) -> None:
        """Set a trial's number of workers to a larger one, if its group can grow."""

    def request_slots(self, count: int) -> None:
        """Request this number of slots from the cluster, as many as the search can use."""

    def close(self, value: Any) -> None:
        """Release all slots and end the search's run as FINISHED with this value."""


class LaneExecutor:
    """Executor of trials of one worker each, on trial slots (lanes)."""

    def __init__(self, lanes: Lanes, folder_of: Callable[[int], str], metric: str, judged: bool) -> None:
        """Create it for lanes that were started.

        Args:
            lanes: the trial slots.
            folder_of: returns a trial's id, which names its folder, by its number.
            metric: the searched metric.
            judged: True if there is a stopper, so that reports wait for its decision.
        """
        self.run = lanes.run
        self.get, self.post, self.request_slots, self.close = lanes.get, lanes.post, lanes.hold_slots, lanes.close
        self._lanes, self._folder_of, self._metric, self._judged = lanes, folder_of, metric, judged
        self._placed: dict[int, tuple[int, int]] = {}  # trial -> its newest attempt, and the lane of that

    def start_trial(self, action: AssignToLane | FormGroup) -> str:
        """Send the trial to its lane, and return the lane's host."""
        assert isinstance(action, AssignToLane)
        self._placed[action.number] = action.attempt, action.lane
        self._lanes.assign(
            action.lane,
            messages.RunTrial(
                action.number,
                action.attempt,
                trial_id=self._folder_of(action.number),
                config=bytes(cloudpickle.dumps(action.config)),
                metric=self._metric,
                isolated=action.isolated,
                resume_from="" if action.resume_from is None else self._folder_of(action.resume_from),
                done_step=action.done_step,
                judged=self._judged,
            ),
        )
        return self._lanes.joined.get(action.lane, "")

    def end_trial(self, action: RequestTrialEnd) -> None:
        """Send the request to the trial's lane, unless a newer attempt of the trial is on another lane."""
        attempt, lane = self._placed.get(action.number, (-1, -1))
        if attempt == action.attempt:
            message = messages.EndTrial(action.number, action.attempt, how=action.how, deadline_s=action.patience_s)
            self._lanes.send_message(lane, message)

    def continue_trial(self, news: ExecutorEvent) -> None:
        """Send the permission to continue to the lane, if the report waits for it."""
        report = news.message
        if isinstance(report, messages.TrialReported) and report.waits:
            self._lanes.send_message(news.lane, messages.GoOn(report.number, report.attempt, report.step))

    def resize_trial(self, action: ResizeGroup) -> None:
        """Do nothing: a trial on a lane has one worker."""
