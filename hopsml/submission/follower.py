"""Follower of a YARN application: polls YARN, prints and ends as ``follow_state`` decides, from any process."""

from __future__ import annotations

import codecs
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from hopsml.errors import ApplicationNotFound, ClusterError, ClusterUnavailable, StorageError
from hopsml.submission import follow_state
from hopsml.submission.interrupts import NoInterrupts, Waiter
from hopsml.yarn import ResourceManager, YarnApplication, logs

POLL_S = 1.0
DRAIN_S = 20.0  # seconds for the last lines: a NodeManager takes some seconds to aggregate a log
TAIL_BYTES = 4096


@dataclass(frozen=True)
class ApplicationResult:
    """Outcome of an application.

    ``status`` is an exit status, 0 only for SUCCEEDED.
    """

    application_id: str
    status: int
    final_status: str = "UNDEFINED"  # as reported by YARN
    diagnostics: str = ""


def to_stderr(line: str) -> None:
    """Print a line about the submission to stderr, prefixed with ``hopsml:``."""
    print(f"hopsml: {line}", file=sys.stderr, flush=True)


def to_stdout(text: str) -> None:
    """Print a part of the driver's output unchanged."""
    print(text, end="", flush=True)


def follow(
    application_id: str,
    *,
    yarn: ResourceManager | None = None,
    notify: Callable[[str], None] = to_stderr,
    show: Callable[[str], None] = to_stdout,
    waiting_timeout_s: float | None = None,
    interrupts: Waiter | None = None,
    poll_s: float = POLL_S,
    log_offset: int = 0,
) -> ApplicationResult:
    """Follow an application to its end; only its id is needed.

    A second signal leaves at once. If no ResourceManager answers, the request is repeated for ten minutes.

    Args:
        application_id: id of the application.
        yarn: client of the ResourceManager; default: the configured one.
        notify: called with each line about the application's state.
        show: called with the driver's output as it grows.
        waiting_timeout_s: longest wait in the queue, in seconds, after which the application is ended with exit status
            124; None for no limit.
        interrupts: source of signals; the first one ends the application.
        poll_s: seconds between two requests.
        log_offset: bytes at the beginning of the output that are not shown.
    """
    yarn = yarn or ResourceManager.of_environment()
    waiter = interrupts or NoInterrupts()
    state = follow_state.FollowState(application_id, time.monotonic(), waiting_timeout_s)
    output = DriverOutput(show, notify, log_offset)
    application: YarnApplication | None = None
    number: int | None = None
    while True:
        seen: follow_state.Observation = (
            observe(yarn, application_id) if number is None else follow_state.Interrupted(number)
        )
        if isinstance(seen, follow_state.Observed):
            application = seen.application
            output.read(application)
        state, todo = follow_state.step(state, seen, time.monotonic())
        if todo.status is None:
            _do(todo, yarn, application_id, notify)
            number = waiter.wait(poll_s)
            continue
        if application is not None and application.is_final:
            output.drain(application, waiter, poll_s)
            if todo.status == follow_state.FAILED and not follow_state.script_said_why(application):
                output.show_errors(application)
        _do(todo, yarn, application_id, notify)
        known = application or YarnApplication(application_id, "", "", "UNDEFINED")
        return ApplicationResult(application_id, todo.status, known.final_status, known.diagnostics)


def end(application_id: str, *, yarn: ResourceManager | None = None, timeout_s: float = 60.0) -> YarnApplication:
    """End an application and wait until it has ended; one that has ended already is unchanged.

    Args:
        application_id: id of the application.
        yarn: client of the ResourceManager; default: the configured one.
        timeout_s: time limit in seconds.

    Raises:
        ApplicationNotFound: if YARN has no such application.
        ClusterError: if YARN refuses.
        ClusterUnavailable: if it does not end in time.
    """
    yarn = yarn or ResourceManager.of_environment()
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            application = yarn.application(application_id)
            if application.is_final:
                return application
            yarn.kill(application_id)
        except ClusterUnavailable:
            if time.monotonic() > deadline:
                raise
        if time.monotonic() > deadline:
            raise ClusterUnavailable(f"{application_id} was asked to end and has not within {timeout_s:g} s")
        time.sleep(0.2)


def observe(yarn: ResourceManager, application_id: str) -> follow_state.Observation:
    """Return the present state of an application; an error of the request becomes an observation as well."""
    try:
        return follow_state.Observed(yarn.application(application_id))
    except ApplicationNotFound as error:
        return follow_state.Unknown(str(error))
    except ClusterError as error:
        return follow_state.Unreachable(str(error))


def _do(todo: follow_state.Decision, yarn: ResourceManager, application_id: str, notify: Callable[[str], None]) -> None:
    """Print the lines of a decision, and request the application's end if that is decided."""
    for line in todo.lines:
        notify(line)
    if todo.end:
        try:
            yarn.kill(application_id)
        except ClusterUnavailable:
            pass  # repeated after the next observation
        except ClusterError as error:
            notify(f"it cannot be ended: {error}")


class DriverOutput:
    """Incremental display of the driver's output; a new attempt starts from the beginning."""

    def __init__(self, show: Callable[[str], None], notify: Callable[[str], None], offset: int = 0) -> None:
        self._show, self._notify = show, notify
        self._offset = offset
        self._container = ""
        self._problem = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._complete = False

    def read(self, application: YarnApplication) -> bool:
        """Show the new output; return True if there will be no more."""
        try:
            part = logs.read(application, "stdout", self._offset)
        except (ClusterError, StorageError) as error:
            if str(error) != self._problem:
                self._problem = str(error)
                self._notify(f"the driver's output cannot be read: {error}")
            return False
        if part is None:
            return False
        if self._container and part.container != self._container:
            self._notify(f"a new attempt runs in {part.container}")
            self._container, self._offset = part.container, 0
            return False
        if part.offset > self._offset:
            self._notify(f"{part.offset - self._offset} bytes of the driver's output are left out")
        self._container, self._offset, self._complete = part.container, part.end, part.complete
        if text := self._decoder.decode(part.data):
            self._show(text)
        return part.complete

    def drain(self, application: YarnApplication, waiter: Waiter, poll_s: float) -> None:
        """Show the remaining output of an application that has ended; give up at a signal, or if the log is late."""
        deadline = time.monotonic() + DRAIN_S
        while application.am_log_url and not self.read(application):
            if time.monotonic() > deadline:
                self._notify(
                    f"the end of the driver's output is not there; later: yarn logs -applicationId {application.id}"
                )
                return
            if waiter.wait(min(poll_s, 0.5)) is not None:
                return

    def show_errors(self, application: YarnApplication) -> None:
        """Print the end of Spark's own log, which has the reason if the script's output has not."""
        if text := logs.tail(application, "stderr", TAIL_BYTES).strip():
            self._notify(f"the end of the driver's stderr:\n{text}")
