"""Reports of a running trial to its lane: ``reporter.broadcast``, ``reporter.log``, ``hopsml.report``; and its result."""

from __future__ import annotations

import select
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping
from typing import Any

import msgspec

from hopsml.cluster.shared.framing import FrameDecoder, framed
from hopsml.cluster.shared.plain import utf8
from hopsml.cluster.worker.returned import plain
from hopsml.errors import ArgumentError, TrialStopped
from hopsml.search import messages
from hopsml.search.messages import EndTrial, GoOn, RunTrial, ToLane, TrialReported
from hopsml.search.metric import epoch_metrics, name_of, unknown_metric_hint
from hopsml.training.trials.lane_queue import FromRunner

_READ_BYTES = 1 << 16
_encode = msgspec.msgpack.Encoder().encode
MOST_HISTORY = 10_000  # values of the metric that are recorded with the trial
# A report waits for the search's decision, so that a trial that must end does not train a further step.
WAIT_SHARE = 0.1  # largest wait as a fraction of the time since the previous report
MOST_WAIT_S, LEAST_WAIT_S = 0.1, 0.002  # an answer takes some milliseconds, so shorter waits are useless
MOST_UNANSWERED = 3  # in a row; later reports of the trial do not wait


def score_of(value: Any, metric: str) -> float:
    """Return the searched number, which may be NaN, from a training function's return value.

    Args:
        value: a number, or a dict with numbers.
        metric: key in the returned dict, or any name if a single number was returned; "" accepts a single number, or
            a dict with one entry.

    Raises:
        ArgumentError: there is no such number; the error describes what the function should return.
    """
    if isinstance(value, dict):
        fields = {str(key): item for key, item in value.items()}
        wanted = name_of(metric, fields)
        if wanted not in fields:
            raise ArgumentError(
                f"the search is about '{wanted}', which is not among the values that the training function returned "
                f"{unknown_metric_hint(wanted, fields)}: return it, or name one of those as the metric"
            )
        found, name = fields[wanted], f"'{wanted}'"
    else:
        found, name = value, "a value"
    number = as_number(found)
    if number is None:
        text = "nothing" if found is None else f"{name} of type {type(found).__name__}: {found!r:.80}"
        raise ArgumentError(f"the training function returned {text}; a search needs a number, or a dict with one")
    return number


def as_number(value: Any) -> float | None:
    """Return a number, numpy scalar or one-element tensor as a float; None for all else, text and bools included."""
    number = plain(value)
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        return None
    return float(number)


class LaneChannel:
    """Messages to and from the lane; usable from any thread, but ``get`` from one thread only."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._frames = connection, FrameDecoder()
        self._came: deque[ToLane] = deque()
        self._let_go_on: GoOn | None = None  # the newest message to continue
        self._lock = threading.Lock()
        self._unsent = bytearray()
        self._held: dict[int, bytes] = {}  # step -> its newest report, while the lane does not read

    def get(self) -> ToLane | None:
        """Wait for the lane's next message; None if the lane has closed the connection."""
        while not self._came:
            if not self._read(0):
                return None
        return self._came.popleft()

    def end_request(self, number: int, attempt: int) -> EndTrial | None:
        """Return the lane's request to end this attempt of a trial, if one has arrived; does not wait.

        Each request is returned once.
        """
        with self._lock:
            self._read(socket.MSG_DONTWAIT)
            for message in self._came:
                if isinstance(message, EndTrial) and (message.number, message.attempt) == (number, attempt):
                    self._came.remove(message)
                    return message
        return None

    def await_answer(self, report: TrialReported, timeout_s: float) -> bool:
        """Wait until the driver has answered this report, by ending the trial or letting it continue.

        Args:
            report: the report sent.
            timeout_s: seconds to wait.

        Returns:
            True if the answer has arrived in time.
        """
        deadline = time.monotonic() + timeout_s
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        with self._lock:
            while not self._has_answer(report):
                left_s = deadline - time.monotonic()
                if left_s <= 0 or not poll.poll(left_s * 1000) or not self._read(socket.MSG_DONTWAIT):
                    return False
        return True

    def _has_answer(self, report: TrialReported) -> bool:
        """Return True if an answer to this report has arrived."""
        trial, answer = (report.number, report.attempt), self._let_go_on
        if answer is not None and (answer.number, answer.attempt, answer.step) == (*trial, report.step):
            return True
        return any(isinstance(each, EndTrial) and (each.number, each.attempt) == trial for each in self._came)

    def report(self, message: TrialReported) -> None:
        """Send a report without waiting; while the lane does not read, retain only the newest report of each step."""
        with self._lock:
            self._held[message.step] = framed(_encode(message))
            self._push(socket.MSG_DONTWAIT)

    def send(self, message: FromRunner) -> None:
        """Send a message after all waiting reports; blocks, and raises OSError if the lane has exited."""
        with self._lock:
            self._push(0)
            self._connection.sendall(framed(_encode(message)))

    def _push(self, flags: int) -> None:
        """Send waiting reports as far as possible."""
        while self._unsent or self._held:
            if not self._unsent:
                self._unsent += b"".join(self._held.values())
                self._held.clear()
            try:
                sent = self._connection.send(self._unsent, flags)
            except BlockingIOError:
                return
            del self._unsent[:sent]

    def _read(self, flags: int) -> bool:
        """Read the messages that have arrived; return False at the end of the connection."""
        try:
            piece = self._connection.recv(_READ_BYTES, flags)
        except BlockingIOError:
            return True
        for message in map(messages.decode_for_lane, self._frames.feed(piece)):
            if isinstance(message, GoOn):
                self._let_go_on = message
            else:
                self._came.append(message)
        return bool(piece)


class TrialReporter:
    """Reporter passed to a training function, with Maggy's interface; usable from any thread.

    Once the search has requested the trial's end, every report raises ``hopsml.errors.TrialStopped``.
    """

    def __init__(self, trial: RunTrial, channel: LaneChannel, resumed: bool = False) -> None:
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
            end = None if self.told else self._channel.end_request(self._trial.number, self._trial.attempt)
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
            self._unanswered = 0 if self._channel.await_answer(message, waits_s) else self._unanswered + 1
        self._reported_at = time.monotonic()

    def _patience_s(self) -> float:
        """Return the seconds for which this report waits for the search's decision."""
        if not self._trial.judged or self.told or self._unanswered >= MOST_UNANSWERED:
            return 0.0
        waits_s = min(MOST_WAIT_S, WAIT_SHARE * (time.monotonic() - self._reported_at))
        return waits_s if waits_s >= LEAST_WAIT_S else 0.0

    def _searched(self, metrics: Mapping[str, Any]) -> str | None:
        """Return the name of the searched metric if it is among the values, else None."""
        name = name_of(self._trial.metric, epoch_metrics(metrics))
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
