"""Interface for executing a search's actions, and its implementation for trials of one worker on trial slots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import cloudpickle

from hopsml.experiment.lanes import Lanes, News
from hopsml.experiment.run import Run
from hopsml.search import messages
from hopsml.search.dispatch.events import Assign, Event, Form, RequestTrialEnd, Resize


class ActionExecutor(Protocol):
    """Interface for executing the dispatch's actions; for the session's thread, except ``post``."""

    run: Run  # of the search as a whole

    def get(self, timeout_s: float | None) -> News | None:
        """Return the next event; None if there is none within ``timeout_s`` seconds (None: without limit)."""

    def post(self, event: Event) -> None:
        """Queue an event for ``get``; for any thread."""

    def begin(self, action: Assign | Form) -> str:
        """Start a trial, and return where it starts, as text for people."""

    def end(self, action: RequestTrialEnd) -> None:
        """Request a trial to end, in the way and within the time that the action names."""

    def go_on(self, news: News) -> None:
        """Permit a trial whose report waits for the stopper's decision to continue."""

    def resize(self, action: Resize) -> None:
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

    def begin(self, action: Assign | Form) -> str:
        """Send the trial to its lane, and return the lane's host."""
        assert isinstance(action, Assign)
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

    def end(self, action: RequestTrialEnd) -> None:
        """Send the request to the trial's lane, unless a newer attempt of the trial is on another lane."""
        attempt, lane = self._placed.get(action.number, (-1, -1))
        if attempt == action.attempt:
            message = messages.EndTrial(action.number, action.attempt, how=action.how, deadline_s=action.patience_s)
            self._lanes.send_message(lane, message)

    def go_on(self, news: News) -> None:
        """Send the permission to continue to the lane, if the report waits for it."""
        report = news.message
        if isinstance(report, messages.TrialReported) and report.waits:
            self._lanes.send_message(news.lane, messages.GoOn(report.number, report.attempt, report.step))

    def resize(self, action: Resize) -> None:
        """Do nothing: a trial on a lane has one worker."""
