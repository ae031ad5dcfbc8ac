"""The handle of a search: behaves like a ``concurrent.futures.Future``, and knows the best trial so far."""

from __future__ import annotations

import concurrent.futures
import logging
import threading
from collections.abc import Callable
from typing import Any

from hopsml import states, tracebacks
from hopsml.cluster.shared import checks
from hopsml.errors import ArgumentError, PathNotFound, RunCancelled, RunError
from hopsml.experiment.searches import table
from hopsml.experiment.searches.board import Board, Observer
from hopsml.experiment.searches.call import duration
from hopsml.experiment.searches.result import BestTrial, SearchResult, best_trial, first_errors, remedy_of
from hopsml.experiment.searches.session import Session
from hopsml.search.dispatch.events import Conclude, Extend
from hopsml.search.space.space import Searchspace
from hopsml.states import State
from hopsml.storage import filesystem, urls
from hopsml.storage.run_dir import RunDir

log = logging.getLogger("hopsml.search")

SUMMARY, TABLE = ".summary.json", "trials.parquet"


class SearchRun:
    """A search that was started. Every method may be called from any thread."""

    def __init__(
        self,
        session: Session,
        directory: RunDir,
        space: Searchspace | None,
        *,
        folder: str = "trials",
    ) -> None:
        """``folder`` of the trials below the run directory."""
        self._session, self.directory, self._space, self._folder = session, directory, space, folder
        self._finish: Callable[[list[dict[str, Any]]], None] = lambda rows: None
        self.board: Board = session.board
        self.run_id, self.run_dir = directory.run_id, directory.url
        self._future: concurrent.futures.Future[SearchResult] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._drive, name=f"hopsml-search-{self.run_id}", daemon=True)

    def on_finish(self, finish: Callable[[list[dict[str, Any]]], None]) -> None:
        """Call ``finish`` with the rows of the table before the search's directory is complete; before ``begin``."""
        self._finish = finish

    def begin(self) -> SearchRun:
        """Let the search begin."""
        self._session.hands.run.on_request = self.cancel
        self._thread.start()
        return self

    def __repr__(self) -> str:
        return (
            f"SearchRun({self.run_id!r}, {self.board.state!r}, best={self.board.best and self.board.best['value']!r})"
        )

    # ------------------------------------------------------------------------------------------ future

    def result(self, timeout: float | None = None) -> SearchResult:
        """Wait for the end, at most ``timeout`` seconds. Raises what ended the search, or TimeoutError.

        Ctrl-C, or the interrupt of a notebook's cell, cancels the search before it goes on as KeyboardInterrupt.
        """
        try:
            error = self._future.exception(timeout)
        except KeyboardInterrupt:
            self.cancel("interrupted by the user")
            self._thread.join(30)
            raise tracebacks.shortened(
                KeyboardInterrupt(f"search {self.run_id} was cancelled: {self.run_dir}")
            ) from None
        if error is not None:
            raise error.with_traceback(None)  # which would begin with the frames of an earlier raise
        return self._future.result()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error that ended the search, None after success."""
        return self._future.exception(timeout)

    def done(self) -> bool:
        """Whether the search is over and its files are complete."""
        return self._future.done()

    def running(self) -> bool:
        """Whether it is not over yet."""
        return not self._future.done()

    def cancel(self, reason: str = "cancelled by the user") -> bool:
        """End the search within seconds; ``experiment.continue_search`` can go on with it. False when it was over already.

        What runs is asked to end, and ended after five seconds. ``result`` raises RunCancelled; ``best`` stands.
        """
        if self._future.done():
            return False
        self._session.cancel(reason)
        return True

    def add_done_callback(self, function: Callable[[concurrent.futures.Future[SearchResult]], None]) -> None:
        """Call ``function`` with the future at the end, or at once when the search is over."""
        self._future.add_done_callback(function)

    def join(self, timeout_s: float) -> None:
        """Wait until the search's files are complete, at most ``timeout_s`` seconds; raises nothing."""
        self._thread.join(timeout_s)

    # ------------------------------------------------------------------------------------------ looking in, changing

    @property
    def best(self) -> BestTrial | None:
        """The best trial that has ended so far; None before there is one."""
        row = self.board.best
        return None if row is None else best_trial(row, self.run_dir, self._folder_of(row), self.board.metric)

    def _folder_of(self, row: dict[str, Any]) -> str:
        return urls.join(self._folder, row["trial_id"]) if self._folder else str(row["trial_id"])

    def status(self) -> dict[str, Any]:
        """How many trials are where, the best value, what runs with its last report, executors, seconds left."""
        view = self.board.snapshot()
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
        """Let the search have more trials, or another deadline, which counts from the search's begin; returns at once.

        Raises ArgumentError when it is over: ``experiment.continue_search`` goes on with it then.
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
        """All trials so far as a pandas frame."""
        return table.frame(self._session.rows())

    def logs(self, number: int) -> str:
        """What a trial has printed, as far as it is in the run directory; empty for one that has printed nothing."""
        url = urls.join(self.run_dir, self._folder, self._session.names.given(number), "output.log")
        try:
            return filesystem.for_url(url).read_bytes(url).decode(errors="replace")
        except PathNotFound:
            return ""

    def observe(self, observer: Observer) -> None:
        """Call ``observer(what, facts)`` for what happens, on a thread of its own; see ``Board.observe``."""
        self.board.observe(observer)

    # ------------------------------------------------------------------------------------------ the thread

    def _drive(self) -> None:
        error: BaseException | None = None
        result: SearchResult | None = None
        reason = ""
        try:
            conclusion = self._session.run()
            reason = conclusion.reason
            error = self._verdict(conclusion)
            if error is None:
                result = self._result(conclusion)
        except BaseException as problem:  # noqa: BLE001 whoever waits for the result must get it
            error = problem
        error = self._close(error, result) or error
        self.board.close(states.end(error), reason, error)
        self.board.settle()  # not for ever: nobody may be reading
        if error is not None:
            self._future.set_exception(error)
        elif result is not None:
            self._future.set_result(result)

    def _close(self, error: BaseException | None, result: SearchResult | None) -> BaseException | None:
        """The files, then the run that holds the executors; ``status.json`` is its last. An error that this meets."""
        run = self._session.hands.run
        met: BaseException | None = None
        try:
            rows = self._session.rows()
            url = urls.join(self.run_dir, TABLE)
            if rows:
                filesystem.for_url(url).write_bytes(url, table.parquet(rows))
            self._finish(rows)
        except Exception as problem:  # noqa: BLE001 the search has its result, but its directory is not complete
            met = problem
        self._session.scribe.close()
        error = error or met
        if error is not None:
            run.fail(error)
        if isinstance(error, RunCancelled) or self._session.conclusion is None:
            run.cancel(str(error))
        else:
            self._session.hands.close({} if result is None else {**result.metrics, "value": result.value})
        run.join(END_S)
        if met is None and error is None and run.done():
            met = run.exception()
        return met

    def _verdict(self, conclusion: Conclude) -> BaseException | None:
        """What the caller gets instead of a result, if anything."""
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

    def _result(self, conclusion: Conclude) -> SearchResult:
        rows, best = self._session.rows(), self._session.best()
        assert best is not None
        view = self.board.snapshot()
        return SearchResult(
            best_trial(best, self.run_dir, self._folder_of(best), self.board.metric),
            rows=rows,
            curves=dict(self.board.curves),
            space=self._space,
            run_id=self.run_id,
            run_dir=self.run_dir,
            name=self.board.name,
            reason=conclusion.reason,
            state=State.FINISHED,
            counts=self._session.dispatch.ledger.counts(),
            seconds=round(view.now - view.began, 3),
            direction=self.board.direction,
            metric=self.board.metric,
        )


END_S = 180.0  # for the executors to be given back, and the last files to be brought to shared storage
