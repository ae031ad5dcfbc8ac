"""One search under way: events in, the dispatch's actions out, in order, on one thread.

What a batch of events makes known goes to the journal before the actions are carried out; results are told to people when
the journal holds them. Everything that can go wrong ends in the handle's future.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from hopsml.errors import RunCancelled, RunError
from hopsml.experiment.lanes import News, RunOver
from hopsml.experiment.searches.board import Board, Running
from hopsml.experiment.searches.hands import Hands
from hopsml.experiment.searches.scribe import Scribe
from hopsml.search import journal
from hopsml.search.dispatch import Dispatch
from hopsml.search.events import (
    Action,
    Assign,
    Began,
    CancelAsked,
    Conclude,
    Ended,
    EndTrial,
    Event,
    Form,
    Reported,
    Resize,
    Settled,
    Tick,
    WantLanes,
)

log = logging.getLogger("hopsml.search")

BATCH = 512  # events at a time
COUNT_EVERY_S = 0.05  # between two looks at how many trials are where


class Session:
    """Drives a search to its end; ``run`` is its thread's life."""

    def __init__(
        self,
        dispatch: Dispatch,
        hands: Hands,
        scribe: Scribe,
        board: Board,
        *,
        id_of: Callable[[int], str],
        progress_files: Mapping[str, Callable[[], bytes]],
        on_report: Callable[[int, Mapping[str, Any], int, float], None] = lambda *_: None,
    ) -> None:
        """``progress_files``: by URL, what shows how far the search is; made on the scribe's thread."""
        self.dispatch, self.hands, self.scribe, self.board = dispatch, hands, scribe, board
        self._id_of, self._files, self._on_report = id_of, progress_files, on_report
        self._told: deque[tuple[int, dict[str, Any], dict[str, Any] | None]] = deque()
        self._lock = threading.Lock()
        self._places: dict[int, str] = {}
        self._facts = 0
        self._counted_at = 0.0
        self.conclusion: Conclude | None = None

    def run(self) -> Conclude:
        """Until the search is over. Raises what ended it otherwise: RunError, StorageError."""
        self._follow(self.dispatch.begin(time.monotonic()))
        while self.conclusion is None:
            self._turn()
        return self.conclusion

    # ------------------------------------------------------------------------------------------ events

    def _turn(self) -> None:
        wake = self.dispatch.wake_at()
        news = self.hands.get(None if wake is None else max(0.0, wake - time.monotonic()))
        batch = [] if news is None else [news]
        while news is not None and len(batch) < BATCH and (news := self.hands.get(0.0)) is not None:
            batch.append(news)
        now = time.monotonic()
        actions: list[Action] = []
        for one in batch:
            if isinstance(one.event, RunOver):
                self._lost(one.event)
            self._show(one)
            if one.event is not None and not isinstance(one.event, RunOver):
                actions += self.dispatch.handle(one.event, now)
        if wake is not None and now >= wake:
            actions += self.dispatch.handle(Tick(), now)
        self._follow(actions)

    def _lost(self, over: RunOver) -> None:
        """The lanes' run has ended although the search has not."""
        if isinstance(over.error, RunCancelled):
            raise over.error
        raise over.error or RunError(f"search {self.board.run_id}: its lanes have ended", self.board.run_dir)

    def _show(self, news: News) -> None:
        match news.event:
            case Began():
                self._shown_begin(news.event)
            case Reported() if news.event.value is not None:
                self.board.trial_reported(news.event.number, news.event.step, news.event.value)
            case Ended():
                self.board.trial_left(news.event.number)
        metrics = getattr(news.message, "metrics", None)
        if metrics is not None and news.message is not None:
            self._on_report(news.message.number, metrics, getattr(news.message, "step", 0), time.time())

    def _shown_begin(self, event: Began) -> None:
        trial = self.dispatch.ledger.get(event.number)
        if trial is not None:
            place = self._places.get(event.number, "")
            self.board.trial_began(
                Running(event.number, self._id_of(event.number), dict(trial.config), place, time.time())
            )

    # ------------------------------------------------------------------------------------------ what follows

    def _follow(self, actions: list[Action]) -> None:
        """The journal first."""
        facts = self.dispatch.take_facts()
        ticket = self.scribe.put(journal.lines_of(facts)) if facts else self.scribe.put(())
        for action in actions:
            self._carry_out(action, ticket)
        self._snapshot(len(facts))
        now = time.monotonic()
        if now - self._counted_at > COUNT_EVERY_S or self.conclusion is not None:
            self._counted_at = now
            self._count()

    def _carry_out(self, action: Action, ticket: int) -> None:
        match action:
            case Assign() | Form():
                self._places[action.number] = self.hands.begin(action)
            case EndTrial():
                self.hands.end(action)
            case Resize():
                self.hands.resize(action)
            case WantLanes():
                self.hands.want(action.count)
            case Settled():
                self._settle(action, ticket)
            case Conclude():
                self.conclusion = action

    def _settle(self, action: Settled, ticket: int) -> None:
        trial = self.dispatch.ledger.get(action.number)
        assert trial is not None
        row = {**self.dispatch.row(action.number), "trial_id": self._id_of(action.number), "outputs": action.outputs}
        best = self.dispatch.best()
        if best is not None:
            best = {**best, "trial_id": self._id_of(best["number"])}
        with self._lock:
            self._told.append((ticket, row, best))
        self._places.pop(action.number, None)
        if self.scribe.durable >= ticket:
            self.durable(ticket)

    def durable(self, ticket: int) -> None:
        """Lines up to this ticket are in the journal: what they say may be told. On the scribe's thread."""
        while True:
            with self._lock:
                if not self._told or self._told[0][0] > ticket:
                    break
                _, row, best = self._told.popleft()
                self.board.settled(row, best)
        for url, content in self._files.items():
            self.scribe.keep(url, content)

    def _snapshot(self, facts: int) -> None:
        self._facts += facts
        if journal.snapshot_due(self._facts, self._at_last()):
            self._facts = 0
            self.scribe.put([journal.snapshot(self.dispatch)])

    def _at_last(self) -> int:
        return len(self.dispatch.ledger)

    def _count(self) -> None:
        places = self.dispatch.places
        self.board.counted(self.dispatch.ledger.counts(), self.dispatch.teller.limit, places.held)

    # ------------------------------------------------------------------------------------------ from other threads

    def post(self, event: Event) -> None:
        """Something that the user wants."""
        self.hands.post(event)

    def cancel(self, reason: str) -> None:
        """End the search; what has been found so far stands."""
        self.post(CancelAsked(reason))
