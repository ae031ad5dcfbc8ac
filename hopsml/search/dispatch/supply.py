"""Chooses the next trial: retries first, then paused trials that the stopper resumes, then new ones of the searcher."""

from __future__ import annotations

from hopsml.search.dispatch.ask_tell import AskTell
from hopsml.search.dispatch.ledger import Trial, TrialPhase
from hopsml.search.dispatch.waiting import ReadyQueue


class Supply:
    """Chooses the next trial for a free lane or group."""

    def __init__(self, ask_tell: AskTell) -> None:
        self.ask_tell = ask_tell
        self.ready = ReadyQueue()

    def returning(self, lane: int | None = None) -> Trial | None:
        """The next trial that ran before and goes on, by retry or resume, where ``lane`` may take it (None: any lane)."""
        trial = self.ready.take(lane)
        while trial is None:
            trial = self.ask_tell.resume()
            if trial is None or trial.phase is TrialPhase.OVER:
                return None
            if trial.phase is not TrialPhase.READY:
                trial = None  # still about to pause: it is queued again once it has
            elif lane is not None and trial.avoid == lane:
                self.ready.put(trial)  # for another lane
                trial = None
        return trial

    def next(self, lane: int | None = None) -> Trial | None:
        """The next trial for ``lane`` (None: any): one that ran before, else a new one; None if there is none at present."""
        return self.returning(lane) or self.ask_tell.ask()
