"""Session of one search: events in, the dispatch's actions out, in order, on one thread.

The consequences of a batch of events are appended to the event log (journal) before the actions are executed; results
are published when the event log has them. All errors end in the handle's future.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from hopsml.core.callbacks import nonblocking_logger
from hopsml.errors import RunCancelled, RunError
from hopsml.experiment.lanes import RunOver
from hopsml.experiment.searches.executors import ActionExecutor
from hopsml.experiment.searches.names import Names
from hopsml.experiment.searches.state import SearchState
from hopsml.experiment.searches.writer import SearchWriter
from hopsml.search.dispatch import events, journal
from hopsml.search.dispatch.dispatch import Dispatch
from hopsml.search.dispatch.groups import Groups
from hopsml.search.dispatch.journal import RunningTrial
from hopsml.search.dispatch.ledger import TrialState, row

log = nonblocking_logger("hopsml.search")

BATCH = 512  # largest number of events processed together
CANCEL_S = 5.0  # for the trials of a search that was cancelled to end in order
COUNT_EVERY_S = 0.05  # between two counts of trials by state


class SearchSession:
    """Driver of one search until its end; ``run`` is called on the handle's thread."""

    def __init__(
        self,
        dispatch: Dispatch,
        executor: ActionExecutor,
        writer: SearchWriter,
        state: SearchState,
        names: Names,
        *,
        files: dict[str, Callable[[], bytes]],
    ) -> None:
        """Create it; ``files``: by URL, functions of the progress files' content, called on the writer's thread."""
        self.dispatch, self.executor, self.writer, self.state, self.names = dispatch, executor, writer, state, names
        self.files = files
        self._places: dict[int, str] = {}
        self._facts = self._facts_at_last = 0  # numbers of events since the event log's last snapshot, and before it
        self._counted_at = 0.0
        self._give_up_at = float("inf")  # when a search that was cancelled ends, even if trials still run
        self.conclusion: events.ConcludeSearch | None = None

    def run(self) -> events.ConcludeSearch:
        """Process events until the search has ended; raises RunError or StorageError if it ends otherwise."""
        self._follow(self.dispatch.begin(time.monotonic()))
        while self.conclusion is None:
            self._turn()
        return self.conclusion

    # ------------------------------------------------------------------------------------------ events

    def _turn(self) -> None:
        wake = min(self.dispatch.wake_at() or float("inf"), self._give_up_at)
        news = self.executor.get(max(0.0, wake - time.monotonic()) if wake < float("inf") else None)
        batch = [] if news is None else [news]
        while news is not None and len(batch) < BATCH and (news := self.executor.get(0.0)) is not None:
            batch.append(news)
        now = time.monotonic()
        actions: list[events.Action] = []
        for one in batch:
            if isinstance(one.event, RunOver):
                self._lost(one.event)
            self._show(one.event)
            if isinstance(one.event, events.SearchCancelRequested):
                self._give_up_at = min(self._give_up_at, now + CANCEL_S)
            if one.event is not None and not isinstance(one.event, RunOver):
                followed = self.dispatch.handle(one.event, now)
                if not any(isinstance(action, events.RequestTrialEnd) for action in followed):
                    self.executor.go_on(one)
                actions += followed
        if now >= self._give_up_at and self.dispatch.conclusion is None:
            raise RunCancelled(f"search {self.state.run_id} was cancelled", self.state.run_dir)
        if now >= wake:
            actions += self.dispatch.handle(events.Tick(), now)
        self._follow(actions)

    def _lost(self, over: RunOver) -> None:
        """Raise the error of the lanes' run, which has ended before the search."""
        if isinstance(over.error, RunCancelled):
            raise over.error
        raise over.error or RunError(f"search {self.state.run_id}: its lanes have ended", self.state.run_dir)

    def _show(self, event: events.Event | RunOver | None) -> None:
        match event:
            case events.Began():
                self._shown_begin(event)
            case events.Reported() if event.value is not None:
                self.state.trial_reported(event.number, event.step, event.value)
            case events.Ended():
                self.state.trial_left(event.number)

    def _shown_begin(self, event: events.Began) -> None:
        trial = self.dispatch.ledger.get(event.number)
        if trial is not None:
            place = self._places.get(event.number, "")
            name = self.names.of(event.number)
            self.state.trial_began(RunningTrial(event.number, name, dict(trial.config), place, time.time()))

    # ------------------------------------------------------------------------------------------ what follows

    def _follow(self, actions: list[events.Action]) -> None:
        """Append to the event log first: nothing is published or started that would be unknown after a crash."""
        for action in actions:
            if isinstance(action, events.Assign | events.Form):
                self.names.of(action.number)
        facts = self.dispatch.take_facts()
        lines = [*journal.lines_of(facts), *self.names.new_lines()]
        self._facts += len(facts)
        if journal.snapshot_due(self._facts, self._facts_at_last):
            self._facts, self._facts_at_last = 0, self._facts_at_last + self._facts
            lines.append(journal.snapshot(self.dispatch))
        self.writer.journal(lines, self._may_wait)
        settled = False
        for action in actions:
            settled = settled or isinstance(action, events.Settled)
            self._carry_out(action)
        if settled:
            for url, content in self.files.items():
                self.writer.queue_file(url, content)
        now = time.monotonic()
        if now - self._counted_at > COUNT_EVERY_S or self.conclusion is not None:
            self._counted_at = now
            self._count()

    def _may_wait(self) -> bool:
        """Return True while waiting for storage is useful: the run is under way, no cancellation has timed out."""
        return time.monotonic() < self._give_up_at and not self.executor.run.done()

    def _carry_out(self, action: events.Action) -> None:
        match action:
            case events.Assign() | events.Form():
                self._places[action.number] = self.executor.begin(action)
            case events.RequestTrialEnd():
                self.executor.end(action)
            case events.Resize():
                self.executor.resize(action)
            case events.WantLanes():
                self.executor.request_slots(action.count)
            case events.Settled():
                self._settle(action)
            case events.ConcludeSearch():
                self.conclusion = action

    def _settle(self, action: events.Settled) -> None:
        trial = self.dispatch.ledger.get(action.number)
        assert trial is not None
        self.state.trial_left(action.number)
        self._count()
        self.state.settled(self.row(trial), self.best())
        self._places.pop(action.number, None)

    def row(self, trial: TrialState) -> dict[str, Any]:
        """Return a trial as a row of the search's table."""
        return {**row(trial), "trial_id": self.names.given(trial.number), "outputs": trial.outputs}

    def rows(self) -> list[dict[str, Any]]:
        """Return all trials as rows of the table; for any thread."""
        return [self.row(trial) for trial in list(self.dispatch.ledger.trials)]

    def best(self) -> dict[str, Any] | None:
        """Return the row of the best trial so far; None before there is one."""
        best = self.dispatch.ledger.best
        return None if best is None else self.row(best)

    def _count(self) -> None:
        places, ledger = self.dispatch.places, self.dispatch.ledger
        busy = places.used if isinstance(places, Groups) else len(ledger.placed)
        self.state.counted(ledger.counts(), self.dispatch.ask_tell.limit, places.slots_held, busy)

    # ------------------------------------------------------------------------------------------ from other threads

    def post(self, event: events.Event) -> None:
        """Queue an event, such as a user's request; for any thread."""
        self.executor.post(event)

    def cancel(self, reason: str) -> None:
        """Start to end the search; the results so far remain. For any thread."""
        self.post(events.SearchCancelRequested(reason))
