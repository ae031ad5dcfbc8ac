"""Reports of a running trial: ``reporter.broadcast``, ``reporter.log``, and ``hopsml.report`` inside a trial."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Mapping
from typing import Any

from hopsml.cluster.shared.plain import utf8
from hopsml.cluster.worker.returned import plain
from hopsml.errors import ArgumentError, TrialStopped
from hopsml.search.messages import RunTrial, TrialReported
from hopsml.search.metric import name_of
from hopsml.training.trials.runner_channel import Channel
from hopsml.training.trials.trial_result import as_number

MOST_HISTORY = 10_000  # values of the metric that are recorded with the trial
# A report waits for the search's decision, so that a trial that must end does not train a further step.
WAIT_SHARE = 0.1  # largest wait as a fraction of the time since the previous report
MOST_WAIT_S, LEAST_WAIT_S = 0.1, 0.002  # an answer takes some milliseconds, so shorter waits are useless
MOST_UNANSWERED = 3  # in a row; later reports of the trial do not wait


class TrialReporter:
    """Reporter passed to a training function, with Maggy's interface; usable from any thread.

    Once the search has requested the trial's end, every report raises ``hopsml.errors.TrialStopped``.
    """

    def __init__(self, trial: RunTrial, channel: Channel, resumed: bool = False) -> None:
        """Create the reporter of a trial.

        Args:
            trial: the trial.
            channel: connection to the lane.
            resumed: the function continues from a checkpoint, so steps without a number are counted from there.
        """
        self._trial, self._channel = trial, channel
        self._lock = threading.Lock()
        self._next = trial.done_step + 1 if resumed else 0
        self._last = -1
        self._unanswered = 0
        self._reported_at = time.monotonic()
        self.told: str = ""  # stop | pause
        self.history: list[tuple[int, float]] = []
        # Threads that an earlier trial has left must not report for this one.
        self._strangers = weakref.WeakSet(t for t in threading.enumerate() if t is not threading.current_thread())

    def broadcast(self, metric: Any, step: int | None = None) -> None:
        """Report the metric's value to the driver.

        Args:
            metric: the value.
            step: its step, which must not be lower than the previous one; counted if left out.

        Raises:
            ArgumentError: (a ValueError) the step is lower than the previous one.
            TrialStopped: the trial must end.
        """
        self.report(step, {name_of(self._trial.metric): metric})

    def log(self, message: Any, jupyter: bool = False) -> None:
        """Print a line to the trial's log, ``output.log``; ``jupyter`` has no effect."""
        print(message, flush=True)

    def report(self, step: int | None, values: Mapping[str, Any]) -> None:
        """Report several named values at once, as ``hopsml.report`` does."""
        if threading.current_thread() in self._strangers:
            return
        metrics = {utf8(str(key)): plain(value) for key, value in values.items()}
        searched = self._searched(metrics)
        with self._lock:
            number = self._step(step, searched)
            if searched is not None:
                value = as_number(metrics[searched])
                if value is not None:
                    if len(self.history) >= MOST_HISTORY:
                        # Drops the previous last value: the newest one must stay, because it is the trial's result.
                        self.history.pop()
                    self.history.append((number, value))
            if number > self._trial.done_step:  # otherwise an earlier part of this trial has reported it
                self._send(number, metrics, searched)
            end = None if self.told else self._channel.ended(self._trial.number, self._trial.attempt)
            if end is not None and end.how != "withdraw":  # the trial runs: too late to withdraw it
                self.told = end.how
        if self.told:
            raise TrialStopped(self.told, number)

    def _send(self, step: int, metrics: dict[str, Any], searched: str | None) -> None:
        """Send a report, and wait for the search's decision if that is worthwhile."""
        waits_s = self._patience_s() if searched is not None else 0.0
        trial = self._trial
        message = TrialReported(trial.number, trial.attempt, step, metrics, waits_s > 0)
        self._channel.report(message)
        if waits_s:
            self._unanswered = 0 if self._channel.await_verdict(message, waits_s) else self._unanswered + 1
        self._reported_at = time.monotonic()

    def _patience_s(self) -> float:
        """Return the seconds for which this report waits for the search's decision."""
        if not self._trial.judged or self.told or self._unanswered >= MOST_UNANSWERED:
            return 0.0
        waits_s = min(MOST_WAIT_S, WAIT_SHARE * (time.monotonic() - self._reported_at))
        return waits_s if waits_s >= LEAST_WAIT_S else 0.0

    def _searched(self, metrics: Mapping[str, Any]) -> str | None:
        """Return the name of the searched metric if it is among the values, else None."""
        name = name_of(self._trial.metric, metrics)
        return name if name in metrics else None

    def _step(self, step: int | None, searched: str | None) -> int:
        """Return the step of a report: the given one after a check, or the next one counted."""
        if step is None:
            if searched is None:
                return max(self._last, 0)
            step = self._next
        elif isinstance(step, bool) or int(step) != step or step < 0:
            raise ArgumentError(f"step={step!r}: a step is a whole number from 0")
        step = int(step)
        if searched is not None:  # other values may use another measure of progress
            if step < self._last:
                raise ArgumentError(
                    f"step={step} after step {self._last}: the steps at which '{searched}' is reported must not fall"
                )
            self._last, self._next = step, max(self._next, step + 1)
        return step
