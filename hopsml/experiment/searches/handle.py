"""Handle of a search: behaves like a ``concurrent.futures.Future``, with the best trial so far; and its session.

The session is one thread: events in, the dispatch's actions out, in order. The consequences of a batch of events are
appended to the event log (journal) before the actions are executed; results are published when the event log has them.
All errors end in the handle's future.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from hopsml.cluster.shared import checks
from hopsml.core import states
from hopsml.core.callbacks import nonblocking_logger
from hopsml.core.states import Lifecycle
from hopsml.core.variables import SETTINGS
from hopsml.errors import ArgumentError, PathNotFound, ResultsNotStored, RunCancelled, RunError, StorageError
from hopsml.experiment.ending import NOT_STORED, PATIENCE_S, RecordWriter, storing_of, unrecorded_text
from hopsml.experiment.run import Handle
from hopsml.experiment.searches.call import TrialNames, duration
from hopsml.experiment.searches.executors import ActionExecutor, RunOver
from hopsml.experiment.searches.recorded import SearchWriter
from hopsml.experiment.searches.result import (
    BestTrial,
    SearchResult,
    best_trial,
    first_errors,
    remedy_of,
    rows_as_frame,
    rows_as_parquet,
)
from hopsml.experiment.searches.state import Observer, SearchState
from hopsml.search.dispatch import events, journal
from hopsml.search.dispatch.dispatch import Dispatch
from hopsml.search.dispatch.events import ConcludeSearch, ExtensionRequested
from hopsml.search.dispatch.groups import Groups
from hopsml.search.dispatch.journal import RunningTrial
from hopsml.search.dispatch.ledger import TrialState, row
from hopsml.search.space.space import Searchspace
from hopsml.storage import filesystem, urls
from hopsml.storage.run_dir import RunDir

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
        names: TrialNames,
        *,
        files: dict[str, Callable[[], bytes]],
    ) -> None:
        """Create it; ``files``: by URL, functions of the progress files' content, called on the writer's thread."""
        self.dispatch, self.executor, self.writer, self.state, self.names = dispatch, executor, writer, state, names
        self.files = files
        self._places: dict[int, str] = {}
        self._facts = self._facts_at_last = 0  # numbers of events since the event log's last snapshot, and before it
        self._counted_at = 0.0
        self._cancelled_for = ""  # reason of the first request to cancel
        self._give_up_at = float("inf")  # when a search that was cancelled ends, even if trials still run
        self.conclusion: events.ConcludeSearch | None = None

    def run(self) -> events.ConcludeSearch:
        """Process events until the search has ended; raises RunError or StorageError if it ends otherwise."""
        self._follow(self.dispatch.start_session(time.monotonic()))
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
                self._cancelled_for = self._cancelled_for or one.event.reason
                self._give_up_at = min(self._give_up_at, now + CANCEL_S)
            if not isinstance(one.event, RunOver):
                followed = self.dispatch.handle(one.event, now)
                if not any(isinstance(action, events.RequestTrialEnd) for action in followed):
                    self.executor.continue_trial(one)
                actions += followed
        if now >= self._give_up_at and self.dispatch.conclusion is None:
            why = f": {self._cancelled_for}" if self._cancelled_for else ""
            raise RunCancelled(f"search {self.state.run_id} was cancelled{why}", self.state.run_dir)
        if now >= wake:
            actions += self.dispatch.handle(events.Tick(), now)
        self._follow(actions)

    def _lost(self, over: RunOver) -> None:
        """Raise the error of the lanes' run, which has ended before the search."""
        if isinstance(over.error, RunCancelled):
            raise over.error
        raise over.error or RunError(f"search {self.state.run_id}: its lanes have ended", self.state.run_dir)

    def _show(self, event: events.Event | RunOver) -> None:
        match event:
            case events.AttemptBegan():
                self._shown_begin(event)
            case events.ValuesReported() if event.value is not None:
                self.state.record_report(event.number, event.step, event.value)
            case events.AttemptEnded():
                self.state.record_trial_left(event.number)

    def _shown_begin(self, event: events.AttemptBegan) -> None:
        trial = self.dispatch.ledger.get(event.number)
        if trial is not None:
            place = self._places.get(event.number, "")
            name = self.names.name_of(event.number)
            self.state.add_running_trial(RunningTrial(event.number, name, dict(trial.config), place, time.time()))

    # ------------------------------------------------------------------------------------------ what follows

    def _follow(self, actions: list[events.Action]) -> None:
        """Append to the event log first: nothing is published or started that would be unknown after a crash."""
        for action in actions:
            if isinstance(action, events.AssignToLane | events.FormGroup):
                self.names.name_of(action.number)
        facts = self.dispatch.take_facts()
        lines = [*journal.fact_lines(facts), *self.names.new_lines()]
        self._facts += len(facts)
        if journal.is_snapshot_due(self._facts, self._facts_at_last):
            self._facts, self._facts_at_last = 0, self._facts_at_last + self._facts
            lines.append(journal.snapshot_line(self.dispatch))
        concludes = any(isinstance(action, ConcludeSearch) for action in actions)
        until = time.monotonic() + (SETTINGS.storage_retry_s if concludes else float("inf"))
        self.writer.append_events(lines, lambda: self._may_wait() and time.monotonic() < until)
        settled = False
        for action in actions:
            settled = settled or isinstance(action, events.TrialSettled)
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
            case events.AssignToLane() | events.FormGroup():
                self._places[action.number] = self.executor.start_trial(action)
            case events.RequestTrialEnd():
                self.executor.end_trial(action)
            case events.ResizeGroup():
                self.executor.resize_trial(action)
            case events.WantLanes():
                self.executor.request_slots(action.count)
            case events.TrialSettled():
                self._settle(action)
            case events.ConcludeSearch():
                self.conclusion = action

    def _settle(self, action: events.TrialSettled) -> None:
        trial = self.dispatch.ledger.get(action.number)
        assert trial is not None
        self.state.record_trial_left(action.number)
        self._count()
        self.state.settled(self.row(trial), self.best())
        self._places.pop(action.number, None)

    def row(self, trial: TrialState) -> dict[str, Any]:
        """Return a trial as a row of the search's table."""
        return {**row(trial), "trial_id": self.names.assigned_name(trial.number), "outputs": trial.outputs}

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


SUMMARY, TABLE = ".summary.json", "trials.parquet"
END_S = 180.0  # for the executors to be released, and the last files to be copied to shared storage


class SearchRun(Handle[SearchResult]):
    """Handle of a search that was started. Every method may be called from any thread."""

    kind = "search"

    def __init__(
        self,
        session: SearchSession,
        directory: RunDir,
        space: Searchspace | None,
        *,
        folder: str = "trials",
        finish: Callable[[list[dict[str, Any]]], None] = lambda rows: None,
    ) -> None:
        """Create the handle; ``open`` starts its thread.

        Args:
            session: the search under way.
            directory: run directory.
            space: search space.
            folder: folder of the trials below the run directory.
            finish: called with the table's rows before the last files are written.
        """
        super().__init__(directory.run_id, directory)
        self._session, self._space, self._folder, self._finish = session, space, folder, finish
        self.state: SearchState = session.state
        self._records = RecordWriter(directory, _print)

    def open(self) -> SearchRun:
        """Start the thread that drives the search, and return the handle at once."""
        self._session.executor.run.on_request = self.cancel
        self._thread.start()
        return self

    def __repr__(self) -> str:
        return (
            f"SearchRun({self.run_id!r}, {self.state.state!r}, best={self.state.best and self.state.best['value']!r})"
        )

    def _cancel(self, reason: str) -> None:
        if self._session.conclusion is None:
            self._session.cancel(reason)
        else:  # only its files are missing
            self._records.cut.set()
            self._session.executor.run.cancel(reason)

    def _interrupted_text(self) -> str:
        view = self.state.snapshot()
        of = "" if view.planned is None else f" of {view.planned}"
        return (
            f"search {self.run_id} was cancelled after {view.done}{of} trials: {self.run_dir}. "
            f"experiment.continue_search({self.run_id!r}), or `hopsml runs resume {self.run_id}`, continues it"
        )

    # ------------------------------------------------------------------------------------------ status and changes

    @property
    def best(self) -> BestTrial | None:
        """Best trial that has ended so far; None before there is one."""
        row = self.state.best
        return None if row is None else best_trial(row, self.run_dir, self._folder_of(row), self.state.metric)

    def _folder_of(self, row: dict[str, Any]) -> str:
        return urls.join(self._folder, row["trial_id"]) if self._folder else str(row["trial_id"])

    def status(self) -> dict[str, Any]:
        """Return counts of trials by state, best value, running trials with last reports, executors, seconds left."""
        view = self.state.snapshot()
        return {
            "run_id": self.run_id,
            "state": view.state,
            "seconds": round(view.now - view.began, 3),
            "seconds_left": view.seconds_left(),
            "planned": view.planned,
            **view.counts,
            "best_value": view.best["value"] if view.best else None,
            "best_config": view.best["config"] if view.best else None,
            "executors": view.executors,
            "busy": view.busy,
            "trials_running": [
                {"number": t.number, "config": t.config, "place": t.place, "step": t.step, "value": t.value}
                for t in view.running
            ],
            "notes": list(view.notes),
            "run_dir": self.run_dir,
        }

    def extend(self, num_trials: int = 0, deadline: float | str | None = None) -> None:
        """Give the search more trials, or another deadline, counted from the search's start; returns at once.

        Raises:
            ArgumentError: The search has ended; ``experiment.continue_search`` can continue it.
        """
        trials = checks.whole_number("num_trials", num_trials, at_least=0)
        seconds = duration("deadline", deadline)
        if self._future.done() or self._session.conclusion is not None:
            raise ArgumentError(
                f"search {self.run_id} has ended; continue it by experiment.continue_search({self.run_id!r})"
            )
        self._session.post(ExtensionRequested(trials, seconds))

    @property
    def trials(self) -> Any:
        """All trials so far as a pandas frame, one row each; columns as in ``SearchResult.trials``."""
        return rows_as_frame(self._session.rows())

    def logs(self, number: int) -> str:
        """Return what a trial has printed, as far as it is in the run directory; empty if there is nothing."""
        url = urls.join(self.run_dir, self._folder, self._session.names.assigned_name(number), "output.log")
        try:
            return filesystem.for_url(url).read_bytes(url).decode(errors="replace")
        except PathNotFound:
            return ""

    def observe(self, observer: Observer) -> None:
        """Call ``observer(what, facts)`` for each event, on a separate thread; see ``SearchState.observe``."""
        self.state.observe(observer)

    # ------------------------------------------------------------------------------------------ the thread

    def _end(self) -> tuple[SearchResult | None, BaseException | None]:
        error: BaseException | None = None
        result: SearchResult | None = None
        reason = ""
        try:
            conclusion = self._session.run()
            reason = conclusion.reason
            error = self._verdict(conclusion)
            if error is None:
                result = self._result(conclusion)
        except StorageError as problem:
            error = ResultsNotStored(f"{NOT_STORED}: the event log of search {self.run_id}: {problem}", self.run_dir)
            last = self._session.dispatch.conclusion
            if last is not None and self._verdict(last) is None:
                result = self._result(last)
        except BaseException as problem:  # noqa: BLE001 its files are written however it ends
            error = problem
        error = self._close(error, result) or error
        if isinstance(error, ResultsNotStored) and result is not None:
            result.state, error.result = states.final_state(error), result
        self.state.close(states.final_state(error), reason, error)
        self.state.settle()  # bounded, as an observer may block
        return result, error

    def _close(self, error: BaseException | None, result: SearchResult | None) -> BaseException | None:
        """Write the last files, end the run that holds the executors, and return an error of that, if any."""
        run = self._session.executor.run
        rows = self._session.rows()
        url = urls.join(self.run_dir, TABLE)
        records: dict[str, Callable[[], object]] = {"the search's own records": lambda: self._finish(rows)}
        if rows:
            records[TABLE] = lambda: filesystem.for_url(url).write_bytes(url, rows_as_parquet(rows))
        unrecorded = self._records.write(records, None if error is None else PATIENCE_S)
        if result is not None:  # the caller gets the result even if storage fails
            result.unrecorded = unrecorded
        lost = self._records.error_of(storing_of({}, unrecorded), error)
        if unrecorded and lost is error:
            _print(f"search {self.run_id} has ended, but {unrecorded_text(unrecorded, with_reason=True)}")
        error = lost
        self._session.writer.close()
        if error is not None:
            run.fail(error)
        if isinstance(error, RunCancelled) or self._session.conclusion is None:
            run.cancel(str(error))
        else:
            self._session.executor.close({} if result is None else {**result.metrics, "value": result.value})
        run.join(END_S + SETTINGS.storage_retry_s)
        if error is not None or not run.done():
            return error
        return run.exception()

    def _verdict(self, conclusion: ConcludeSearch) -> BaseException | None:
        """Return the error to raise instead of a result, if any."""
        best = self._session.best()
        if conclusion.reason == "cancelled":
            so_far = "" if best is None else f"; the best of its trials gave {best['value']!r} with {best['config']!r}"
            return RunCancelled(f"search {self.run_id} was cancelled: {conclusion.text}{so_far}", self.run_dir)
        if best is None or conclusion.reason == "failed":
            rows = self._session.rows()
            errors, remedy = first_errors(rows, told=conclusion.text), remedy_of(rows)
            text = f"search {self.run_id} found nothing ({conclusion.reason}): {conclusion.text}"
            return RunError(
                "\n".join(part for part in (text, errors, f"run directory: {self.run_dir}", remedy) if part),
                self.run_dir,
            )
        return None

    def _result(self, conclusion: ConcludeSearch) -> SearchResult:
        rows, best = self._session.rows(), self._session.best()
        assert best is not None
        remarks = self._session.dispatch.ledger.remarks()
        for text in remarks:
            self.state.note(text)
        view = self.state.snapshot()
        return SearchResult(
            best_trial(best, self.run_dir, self._folder_of(best), self.state.metric),
            rows=rows,
            curves=dict(self.state.curves),
            space=self._space,
            run_id=self.run_id,
            run_dir=self.run_dir,
            name=self.state.name,
            reason=conclusion.reason,
            state=Lifecycle.FINISHED,
            counts=self._session.dispatch.ledger.counts(),
            seconds=round(view.now - view.began, 3),
            direction=self.state.direction,
            metric=self.state.metric,
            notes=remarks,
        )


def _print(text: str) -> None:
    print(f"hopsml: {text}", flush=True)
