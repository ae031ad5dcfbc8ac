"""Handle of a search: behaves like a ``concurrent.futures.Future``, with the best trial so far."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hopsml.cluster.shared import checks
from hopsml.core import states
from hopsml.core.states import Lifecycle
from hopsml.errors import ArgumentError, PathNotFound, RunCancelled, RunError
from hopsml.experiment import last_records
from hopsml.experiment.handle import Handle
from hopsml.experiment.searches import table
from hopsml.experiment.searches.call import duration
from hopsml.experiment.searches.result import BestTrial, SearchResult, best_trial, first_errors, remedy_of
from hopsml.experiment.searches.session import SearchSession
from hopsml.experiment.searches.state import Observer, SearchState
from hopsml.search.dispatch.events import ConcludeSearch, Extend
from hopsml.search.space.space import Searchspace
from hopsml.storage import filesystem, urls
from hopsml.storage.run_dir import RunDir

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
        self._session.cancel(reason)

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
                f"search {self.run_id} is over; experiment.continue_search({self.run_id!r}) goes on with it"
            )
        self._session.post(Extend(trials, seconds))

    @property
    def trials(self) -> Any:
        """All trials so far as a pandas frame, one row each; columns as in ``SearchResult.trials``."""
        return table.frame(self._session.rows())

    def logs(self, number: int) -> str:
        """Return what a trial has printed, as far as it is in the run directory; empty if there is nothing."""
        url = urls.join(self.run_dir, self._folder, self._session.names.given(number), "output.log")
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
        except BaseException as problem:  # noqa: BLE001 its files are written however it ends
            error = problem
        error = self._close(error, result) or error
        self.state.close(states.end(error), reason, error)
        self.state.settle()  # bounded, as an observer may block
        return result, error

    def _close(self, error: BaseException | None, result: SearchResult | None) -> BaseException | None:
        """Write the last files, end the run that holds the executors, and return an error of that, if any."""
        run = self._session.executor.run
        rows = self._session.rows()
        url = urls.join(self.run_dir, TABLE)
        records: dict[str, Callable[[], object]] = {"the search's own records": lambda: self._finish(rows)}
        if rows:
            records[TABLE] = lambda: filesystem.for_url(url).write_bytes(url, table.parquet(rows))
        unrecorded = last_records.write(records, _print, last_records.PATIENCE_S)
        if result is not None:  # the caller gets the result even if storage fails
            result.unrecorded = unrecorded
        if unrecorded:
            _print(f"search {self.run_id} has ended, but {last_records.words(unrecorded)}")
        self._session.writer.close()
        if error is not None:
            run.fail(error)
        if isinstance(error, RunCancelled) or self._session.conclusion is None:
            run.cancel(str(error))
        else:
            self._session.executor.close({} if result is None else {**result.metrics, "value": result.value})
        run.join(END_S)
        return run.exception() if error is None and run.done() else None

    def _verdict(self, conclusion: ConcludeSearch) -> BaseException | None:
        """Return the error to raise instead of a result, if any."""
        best = self._session.best()
        if conclusion.reason == "cancelled":
            so_far = "" if best is None else f"; the best of its trials gave {best['value']!r} with {best['config']!r}"
            return RunCancelled(f"search {self.run_id} was cancelled: {conclusion.text}{so_far}", self.run_dir)
        if best is None or conclusion.reason == "failed":
            rows = self._session.rows()
            errors, remedy = first_errors(rows), remedy_of(rows)
            text = f"search {self.run_id} found nothing ({conclusion.reason}): {conclusion.text}"
            return RunError(
                "\n".join(part for part in (text, errors, f"run directory: {self.run_dir}", remedy) if part),
                self.run_dir,
            )
        return None

    def _result(self, conclusion: ConcludeSearch) -> SearchResult:
        rows, best = self._session.rows(), self._session.best()
        assert best is not None
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
        )


def _print(text: str) -> None:
    print(f"hopsml: {text}", flush=True)
