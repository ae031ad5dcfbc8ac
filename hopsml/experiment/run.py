"""Handles of runs: like a ``concurrent.futures.Future``, with logs, status and members.

``Handle`` is the base class of runs and searches: a future, and the thread that writes the last files.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import cloudpickle

from hopsml.cluster.driver.run_state import Change, Observer, RunState
from hopsml.cluster.shared.layout import TRAINING_ROLES
from hopsml.cluster.shared.plain import as_json, result_as_dict
from hopsml.core import states, tracebacks
from hopsml.core.newer_python import FUTURE_TIMEOUTS
from hopsml.core.states import Lifecycle
from hopsml.core.variables import SETTINGS
from hopsml.errors import (
    ArgumentError,
    CoordinatorLost,
    HopsmlError,
    ResultsNotStored,
    RunCancelled,
    RunError,
    WorkerFailed,
)
from hopsml.experiment import applications
from hopsml.experiment.ending import RecordWriter, Storing, status_record, unrecorded_text
from hopsml.experiment.messages import Ask, Messages, ProfileRequestHandler
from hopsml.experiment.result import Result, effective_settings, settings_warning
from hopsml.storage import checkpoints, mailbox, run_logs
from hopsml.storage.run_dir import RunDir
from hopsml.training.messages import pickle_value

# If the system delivers a signal to another thread than the main one, the main thread's wait continues; Python runs the
# signal handler only when that wait ends.
_WAKE_S = 0.5

R = TypeVar("R")


class Handle(ABC, Generic[R]):
    """Handle of something that was started, like a ``concurrent.futures.Future``, usable from any thread."""

    kind = "run"  # noun in messages

    def __init__(self, run_id: str, directory: RunDir) -> None:
        self.run_id, self.directory, self.run_dir = run_id, directory, directory.url
        self._future: concurrent.futures.Future[R] = concurrent.futures.Future()
        self._future.set_running_or_notify_cancel()  # else asyncio and others could cancel the future, but not the run
        self._thread = threading.Thread(target=self._drive, name=f"hopsml-{self.kind}-{run_id}", daemon=True)

    @abstractmethod
    def _end(self) -> tuple[R | None, BaseException | None]:
        """Wait for the end, write the last files, return result or error. Called once, on the handle's thread."""

    @abstractmethod
    def _cancel(self, reason: str) -> None:
        """Start ending it; returns at once."""

    @abstractmethod
    def _interrupted_text(self) -> str:
        """Return what Ctrl-C has ended, and how to continue it."""

    def _drive(self) -> None:
        result, error = None, None
        try:
            result, error = self._end()
        except BaseException as problem:  # noqa: BLE001 callers wait on the future, which is resolved only here
            error = problem
        if error is not None:
            self._future.set_exception(error)
        elif result is not None:
            self._future.set_result(result)

    def result(self, timeout: float | None = None) -> R:
        """Wait for the end, at most ``timeout`` seconds, and return the result.

        Ctrl-C, or the interrupt of a notebook's cell, cancels the run or search before KeyboardInterrupt is raised.

        Raises:
            RunCancelled: It was cancelled.
            TimeoutError: It has not ended within ``timeout`` seconds.
            BaseException: Any other error that ended it.
        """
        try:
            error = self.exception(timeout)
        except KeyboardInterrupt:
            self.cancel("ended by the job service" if SETTINGS.job_tag else "interrupted by the user")
            self.join(30)
            applications.release_after_interrupt()
            # a new exception, as the traceback of the wait has no useful information
            raise tracebacks.shortened(KeyboardInterrupt(self._interrupted_text())) from None
        except concurrent.futures.CancelledError:
            raise RunCancelled(f"{self.kind} {self.run_id} was cancelled", self.run_dir) from None
        if error is not None:
            raise error.with_traceback(None)  # without the frames of an earlier raise
        return self._future.result()

    @property
    def future(self) -> concurrent.futures.Future[R]:
        """Future for ``concurrent.futures.wait`` and ``as_completed``; to cancel, call the handle's ``cancel``."""
        return self._future

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the end like ``result``, and return the error that ended it; None after success."""
        deadline = time.monotonic() + (math.inf if timeout is None else timeout)
        while True:
            try:
                return self._future.exception(max(0.0, min(_WAKE_S, deadline - time.monotonic())))
            except FUTURE_TIMEOUTS:
                if time.monotonic() >= deadline:
                    raise

    def done(self) -> bool:
        """Return True if it has ended and its files are complete."""
        return self._future.done()

    def running(self) -> bool:
        """Return True if it has not ended yet, the opposite of ``done``."""
        return not self._future.done()

    def cancel(self, reason: str = "cancelled by the user") -> bool:
        """End it: its workers exit within seconds, and ``result`` raises RunCancelled.

        After a search, ``best`` remains available, and ``experiment.continue_search`` can continue it.

        Returns:
            False if it had ended already.
        """
        if self._future.done():
            return False
        self._cancel(reason)
        return True

    def add_done_callback(self, function: Callable[[concurrent.futures.Future[R]], None]) -> None:
        """Call ``function`` with the future at the end, or at once if it has ended."""
        self._future.add_done_callback(function)

    def join(self, timeout_s: float) -> None:
        """Wait until the files are complete, at most ``timeout_s`` seconds; raises nothing."""
        self._thread.join(timeout_s)


class Run(Handle[Result]):
    """Handle of a run that was started. Every method may be called from any thread."""

    def __init__(
        self,
        state: RunState,
        run_dir: RunDir,
        cancel: Callable[[str], None],
        *,
        metric_key: str | None = None,
        before_status: Callable[[], None] = lambda: None,
        resize: Callable[[int], None] | None = None,
        limits: tuple[int, int] = (1, 1),
        tell: Callable[[int, bytes], None] | None = None,
        servers: Sequence[int] = (),
        heeds_requests: bool = False,
        profile: Ask | None = None,
        **facts: Any,
    ) -> None:
        """Create the handle and start its thread, which writes the run's last files when the run ends.

        Args:
            state: state of the run in the driver.
            run_dir: run directory.
            cancel: ends the run's workers, for a reason.
            metric_key: key of the run's metric among the function's outputs.
            before_status: waits until all other files are in the run directory; called before the last file is written.
            resize: sets the largest number of workers; None for a run of fixed size.
            limits: smallest and largest size that ``resize`` accepts.
            tell: sends bytes to the worker of a rank; None if the run's workers do not call the user's function.
            servers: ranks that call no function of the user: TensorFlow's servers of a run with parameter servers.
            heeds_requests: poll the run directory for requests to cancel the run or to profile a worker.
            profile: starts a profile of the worker of a rank.
            **facts: further attributes of the result.
        """
        super().__init__(state.run_id, run_dir)
        self.state = state
        self._end_workers, self._facts = cancel, {"metric_key": metric_key, **facts}
        self._before_status = before_status
        self._resize, self._limits = resize, limits
        self._tell, self._servers = tell, servers
        self._writer = RecordWriter(run_dir, self._note)
        self._failure: BaseException | None = None
        self._ended_as: Lifecycle | None = None
        self._requests = mailbox.Polling.for_url(run_dir.url) if heeds_requests else None
        self._profiling = ProfileRequestHandler(run_dir, state.run_id, profile) if heeds_requests and profile else None
        if self._profiling is not None:
            state.observe(self._profiling.on_change)
        self.on_request: Callable[[str], object] = self.cancel  # replaced by a search, which ends all its trials
        self._messages = Messages(self.run_id, self._resize_by_request, self._note)
        if tell is not None:
            state.observe(self._messages.on_change)
        self._thread.start()

    def __repr__(self) -> str:
        return f"Run({self.run_id!r}, {self.state.phase.value!r}, run_dir={self.run_dir!r})"

    def _cancel(self, reason: str) -> None:
        if self.state.is_over:
            self._writer.cut.set()
        else:
            self._end_workers(reason)

    def while_storing(self, give_sign: Callable[[], object]) -> None:
        """Call ``give_sign`` regularly while the last records are being retried: no other driver may continue the run."""
        self._writer.while_waiting = lambda: self._between_retries(give_sign)

    def _between_retries(self, give_sign: Callable[[], object]) -> None:
        with contextlib.suppress(HopsmlError, OSError):  # the store is not available, so no other driver can read it
            give_sign()
            if self._requests is not None and (reason := mailbox.read_cancel_request(self.directory)):
                self.cancel(reason)

    def _interrupted_text(self) -> str:
        step = self.state.step
        at = f" at step {step}" if step is not None else ""
        named = (
            self.run_id if self.directory.run_id == self.run_id else self.run_dir
        )  # a nested run is found by its URL
        checkpoint = None
        with contextlib.suppress(HopsmlError):  # storage does not answer
            checkpoint = checkpoints.latest_complete(self.directory.checkpoints)
        begins = f"from its checkpoint of step {checkpoint}" if checkpoint is not None else "from its beginning"
        without = "" if checkpoint is not None else ", as it has stored no checkpoint"
        return (
            f"{self.kind} {self.run_id} was cancelled{at}: {self.run_dir}. experiment.resume({named!r}), or `hopsml runs "
            f"resume {named}`, continues it {begins}{without}"
        )

    # ------------------------------------------------------------------------------------------ during the run

    def resize(self, size: int) -> None:
        """Set the largest number of workers of an elastic run, from its next commit on; returns at once.

        Raises:
            ArgumentError: The run has a fixed size or has ended, or the number is not from ``min_workers`` to
                ``max_workers``.
        """
        smallest, largest = self._limits
        if self._resize is None:
            raise ArgumentError(
                f"run {self.run_id} has a fixed size and cannot be resized; start it with min_workers= and max_workers="
            )
        if isinstance(size, bool) or not isinstance(size, int) or not smallest <= size <= largest:
            raise ArgumentError(
                f"resize({size!r}): it must be a whole number from min_workers={smallest} to max_workers={largest}"
            )
        if self.state.is_over:
            raise ArgumentError(
                f"run {self.run_id} has ended ({self.state.phase.value}) and cannot be resized; experiment.resume() "
                "continues it with another size"
            )
        self._resize(size)

    def _resize_by_request(self, rank: int, size: object) -> None:
        """Resize the run for ``hopsml.elastic.resize`` in a worker; publish a note if it is not possible."""
        try:
            self.resize(size)  # type: ignore[arg-type]
        except (ArgumentError, CoordinatorLost) as error:
            self.state.publish(
                Change("note", rank, f"the request of rank {rank} for another size was refused: {error}")
            )

    def on_message(self, function: Callable[[int, Any], None]) -> None:
        """Call ``function(rank, value)`` for what workers have sent by ``hopsml.send``, in order, earlier values too.

        It is called on a thread of the run; an error in it is logged, and the next value is delivered nevertheless. At
        most 10 000 values, 256 MiB of them, wait for it; further ones are dropped, which a note reports.
        """
        self._messages.subscribe(function)

    def await_messages(self) -> None:
        """Wait until the functions of ``on_message`` have been called with all values received so far.

        After the end of a run these are all values that its workers have sent.
        """
        self._messages.await_delivery()

    def send(self, value: Any, rank: int | None = None) -> None:
        """Send a value to the workers, or to that of ``rank``, where ``hopsml.receive()`` returns it; does not wait.

        A value for a worker that does not run (any more) is dropped. In a run with parameter servers the chief (rank 0) and
        the evaluator receive values, as only they call the function.

        Raises:
            ArgumentError: The value cannot be pickled, the run was not started in this process, or the workers, or that
                of ``rank``, do not call a function of the user.
        """
        data = pickle_value(value, "Run.send()")
        if self._tell is None:
            raise ArgumentError(f"run {self.run_id} was not started in this process, so no message can be sent to it")
        if rank in self._servers:
            raise ArgumentError(
                f"rank {rank} of run {self.run_id} is a server of TensorFlow, which calls no function and receives no "
                "messages; send to rank 0, the chief"
            )
        functions = [one for one in sorted(self.state.members) if one not in self._servers]
        for receiver in functions if rank is None else (rank,):
            self._tell(receiver, data)

    # ------------------------------------------------------------------------------------------ observation

    def status(self) -> dict[str, Any]:
        """Return state and phase, seconds since the start, and each member's host, slot, state, step and metrics."""
        return {
            "run_id": self.run_id,
            "state": self._ended_as or self.state.phase.state,
            "phase": self.state.phase.value,
            "generation": self.state.generation,
            "seconds": round(time.time() - self.state.began, 3),
            "members": [
                {
                    "rank": view.rank,
                    "host": view.host,
                    "executor": view.executor_id,
                    "gpu_indices": list(view.gpu_indices),
                    "state": view.state,
                    **({"left": view.left} if view.left else {}),
                    "step": view.step,
                    "metrics": dict(view.metrics),
                }
                for _, view in sorted(self.state.members.items())
            ],
            "run_dir": self.run_dir,
        }

    def logs(self, rank: int = 0) -> str:
        """Return what this rank has printed so far; for ranks other than 0, as far as it is in the run directory.

        Returns:
            The text; empty for a rank that has printed nothing, or that has not begun.

        Raises:
            StorageError: The run directory cannot be read.
        """
        live = self.state.log(rank)
        if live:
            return live
        if not run_logs.logs_of_rank(self.directory, rank):
            return ""
        return b"".join(run_logs.read_rank_logs(self.directory, rank)).decode(errors="replace")

    def observe(self, observer: Observer) -> None:
        """Call ``observer`` with every change, on a separate thread; see ``cluster.driver.run_state.Change``."""
        self.state.observe(observer)

    # ------------------------------------------------------------------------------------------ the end

    def fail(self, error: BaseException) -> None:
        """Mark the run as failed, before the end of its group, however that ends: ``result`` raises this error."""
        self._failure = error

    def _end(self) -> tuple[Result | None, BaseException | None]:
        """Wait until the group has ended, write the run's last files, and return result or error."""
        self._wait()
        error, result, written_outputs = self._failure or self.state.error, None, dict[str, Any]()
        if error is None:
            try:
                result = self._result()
                written_outputs = as_json(result[1])
                for note in filter(None, (settings_warning(result.in_force), result.missing_metric)):
                    self._note(note)
            except Exception as problem:  # noqa: BLE001 the value cannot be read back: there is no result
                error, result = problem, None
        error = self._record(written_outputs, error, result)
        # Before a caller gets the result: what is displayed of the run must be complete by then.
        self.state.publish(Change("closed", metrics=written_outputs, error=error))
        self.state.wait_for_observers()  # bounded, as an observer may block
        return result, error

    def _record(
        self, written_outputs: dict[str, Any], error: BaseException | None, result: Result | None
    ) -> BaseException | None:
        """Write the last records, and return the error with which the run ends. Raises nothing."""
        records: dict[str, Callable[[], object]] = {}
        if error is None:
            records[".outputs.json"] = lambda: self.directory.write_json(self.directory.outputs_json, written_outputs)
        elif log := self.state.gang_log:
            records["gang.jsonl"] = lambda: self.directory.write_gang_log(log.to_jsonl())
        records["the record of code and environment"] = self._before_status
        noted, outputs = len(self.state.notes), written_outputs if error is None else None
        unrecorded, final = self._writer.close(
            records, self._status_record, error, behind=self.state.behind, outputs=outputs
        )
        self._ended_as = states.final_state(final)
        if result is not None:
            result.unrecorded, result.state = unrecorded, self._ended_as
            if isinstance(final, ResultsNotStored):
                final.result = result
        if unrecorded and not isinstance(final, ResultsNotStored):
            self._note(
                f"the run has ended as {self._ended_as}, but {unrecorded_text(unrecorded, noted == len(self.state.notes))}"
            )
        copies = [files.left for _, files in sorted(self.state.behind.items()) if files.left]
        if copies and not isinstance(final, ResultsNotStored):  # whose message names them
            self._note(f"files that it could not store are in {', '.join(copies)}; copy what you need, and remove them")
        return final

    def _note(self, text: str) -> None:
        self.state.publish(Change("note", text=text))

    def _wait(self) -> None:
        """Wait until the group has ended; poll the run directory for requests until then."""
        self._poll_profile_requests()
        while self._requests is not None and not self.state.wait(self._requests.pause_s):
            if reason := self._requests.poll(lambda: mailbox.read_cancel_request(self.directory)):
                self._requests = None
                with contextlib.suppress(CoordinatorLost):  # it is closed, as the run has just ended
                    self.on_request(reason)
            elif self._requests.is_storage_responding:
                self._poll_profile_requests()
        self.state.wait()
        if self._profiling is not None:
            self._profiling.give_up()

    def _poll_profile_requests(self) -> None:
        if self._profiling is not None:
            self._profiling.handle_requests()

    def _value(self) -> Any:
        try:
            return cloudpickle.loads(self.state.result) if self.state.result else None
        except Exception as error:
            raise RunError(
                f"run {self.run_id} finished, but the value that the training function returned cannot be read here "
                f"({type(error).__name__}: {error}); return numbers, strings, numpy arrays or dicts of them, "
                "and store a model inside the function by hopsml.model.export",
                self.run_dir,
            ) from error

    def _result(self) -> Result:
        value = self._value()
        metrics = result_as_dict(value, self.directory.log_url(self.state.begun, 0))
        layout = self.state.layout
        return Result(
            self.directory.events,
            metrics,
            value=value,
            run_dir=self.run_dir,
            run_id=self.run_id,
            state=Lifecycle.FINISHED,
            workers=self.status()["members"],
            ring_order=[f"{p.role}:{p.task_index}" for p in layout.placements] if layout else [],
            seconds=round(time.time() - self.state.began, 3),
            steps_per_second=self.state.steps_per_second(),
            in_force=self._in_force(),
            losses=list(self.state.losses.entries),
            **self._facts,
        )

    def _in_force(self) -> dict[str, Any]:
        """Return the effective settings of the workers that train; parameter servers and the evaluator do not."""
        layout = self.state.layout
        training = {p.rank for p in layout.placements if p.role in TRAINING_ROLES} if layout else set()
        seen = [view.seen for rank, view in sorted(self.state.members.items()) if rank in training]
        return effective_settings(seen, self.state.committed if self._resize is not None else None)

    def _status_record(self, error: BaseException | None, storing: Storing) -> dict[str, Any]:
        return status_record(
            self.run_id,
            states.final_state(error),
            self.state.began,
            str(error) if error is not None else "",
            cause=as_json(_cause(error)),
            raised=isinstance(error, WorkerFailed) and bool(error.remote_traceback),  # by the user's own code
            workers=as_json(self.status()["members"]),
            in_force=self._in_force(),
            losses=as_json(self.state.losses.entries),
            not_on_shared_storage={str(rank): list(files.texts) for rank, files in self.state.behind.items()},
            local_copies=list(storing.left),
        )


def _cause(error: BaseException | None) -> str:
    """Return why the run did not finish, in one line; "" if it finished."""
    if isinstance(error, WorkerFailed):
        return " ".join(f"rank {error.rank} on {error.host}: {error.cause}".split())
    lines = str(error or "").strip().splitlines()
    return lines[0] if lines else type(error).__name__ if error is not None else ""
