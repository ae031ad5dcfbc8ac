"""Who carries out what the dispatch of a search decides; here for trials of a single worker, ``groups.py`` for others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import cloudpickle

from hopsml.experiment.lanes import Lanes, News
from hopsml.experiment.run import Run
from hopsml.search import messages
from hopsml.search.dispatch.events import Assign, EndTrial, Event, Form, Resize


class ActionExecutor(Protocol):
    """Carries out what the dispatch decides. For the session's thread, but for ``post``."""

    run: Run  # of the search as a whole

    def get(self, timeout_s: float | None) -> News | None:
        """The next thing that happened; None when nothing does within ``timeout_s`` seconds, None: without a limit."""

    def post(self, event: Event) -> None:
        """Have ``get`` return this event in its turn; for any thread."""

    def begin(self, action: Assign | Form) -> str:
        """Have a trial begin; returns where it does, in words for people."""

    def end(self, action: EndTrial) -> None:
        """Have a trial end, in the way and within the time that the action names."""

    def go_on(self, news: News) -> None:
        """Answer a report that waits for its verdict and does not end its trial."""

    def resize(self, action: Resize) -> None:
        """Give a trial more workers, where it can have them."""

    def want(self, count: int) -> None:
        """Tell the cluster how many slots the search can use."""

    def close(self, value: Any) -> None:
        """All is done: give everything back; the search's run ends as FINISHED with this value."""


class LaneExecutor:
    """Has trials of one worker each carried out on lanes."""

    def __init__(self, lanes: Lanes, folder_of: Callable[[int], str], metric: str, judged: bool) -> None:
        """``folder_of`` gives a trial's id, which names its folder, by its number. ``judged``: there is a stopper."""
        self.run = lanes.run
        self.get, self.post, self.want, self.close = lanes.get, lanes.post, lanes.want, lanes.close
        self._lanes, self._folder_of, self._metric, self._judged = lanes, folder_of, metric, judged
        self._placed: dict[int, tuple[int, int]] = {}  # trial -> its newest attempt, and the lane of that

    def begin(self, action: Assign | Form) -> str:
        """Send the trial to its lane; returns the lane's host."""
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

    def end(self, action: EndTrial) -> None:
        """Tell the lane, unless a newer attempt of the trial is elsewhere."""
        attempt, lane = self._placed.get(action.number, (-1, -1))
        if attempt == action.attempt:
            message = messages.EndTrial(action.number, action.attempt, how=action.how, deadline_s=action.patience_s)
            self._lanes.tell(lane, message)

    def go_on(self, news: News) -> None:
        """Tell the lane."""
        report = news.message
        if isinstance(report, messages.TrialReported) and report.waits:
            self._lanes.tell(news.lane, messages.GoOn(report.number, report.attempt, report.step))

    def resize(self, action: Resize) -> None:
        """Nothing: a trial on a lane has one worker."""
