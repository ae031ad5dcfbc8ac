"""Follower of a YARN application, from any process: ``step`` decides, ``follow`` polls YARN, prints and ends.

    Observed, Unreachable, Unknown, Interrupted  ->  step  ->  lines to print, whether to end the application, exit status

The application waits in ACCEPTED until its queue has capacity, runs, and ends; every end has an exit status, and only
SUCCEEDED has 0.
"""

from __future__ import annotations

import codecs
import dataclasses
import re
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from hopsml.core.newer_python import StrEnum
from hopsml.errors import ApplicationNotFound, ClusterError, ClusterUnavailable, StorageError
from hopsml.submission.spark_submit import NoInterrupts, Waiter
from hopsml.yarn import ResourceManager, YarnApplication, logs
from hopsml.yarn.rpc import RpcClient

OK, FAILED, TIMED_OUT = 0, 1, 124  # exit statuses; 128 + signal if a signal ended it
REMIND_S = 30.0  # seconds after which an unchanged reason for waiting is printed again
# seconds without an answer after which ResourceManagers are given up: a restart takes a minute or two
SILENCE_S = 600.0
CONTACT_S = 60.0  # seconds without an answer of the web services after which RPC is used
END_S = 60.0  # seconds from the request to end it until that is given up


@dataclass(frozen=True)
class StateObserved:
    """Observation: the ResourceManager returned the application's state."""

    application: YarnApplication


@dataclass(frozen=True)
class ResourceManagerUnreachable:
    """Observation: no ResourceManager answered, or it refused; ``problem`` is the reason."""

    problem: str
    is_refused: bool = False  # asking again does not help soon: no ticket, no permission


@dataclass(frozen=True)
class UnknownApplication:
    """Observation: the ResourceManager has no such application."""

    problem: str


@dataclass(frozen=True)
class SignalReceived:
    """Observation: this process received a signal, SIGINT (Ctrl-C) or SIGTERM."""

    number: int


Observation = StateObserved | ResourceManagerUnreachable | UnknownApplication | SignalReceived


class OnLostContact(StrEnum):
    """What to do with an application if the ResourceManager's web services cannot be read any more."""

    FOLLOW = "follow"  # over Hadoop's RPC
    KILL = "kill"  # over Hadoop's RPC
    LEAVE = "leave"


@dataclass(frozen=True)
class FollowState:
    """State between two observations; times are in seconds of a monotonic clock."""

    application_id: str
    began_s: float
    waiting_timeout_s: float | None = None
    state: str = ""
    reason: str = ""  # for waiting, as last printed
    told_s: float = 0.0
    silent_since_s: float | None = None
    ending_since_s: float | None = None
    ended_by: int = 0  # exit status if this process has requested the end; else 0
    on_lost_contact: OnLostContact = OnLostContact.FOLLOW
    by_rpc: bool = False  # the web services do not answer, and Hadoop's RPC is used


@dataclass(frozen=True)
class Decision:
    """Actions after an observation; ``status`` is None until the application has ended."""

    lines: tuple[str, ...] = ()
    end: bool = False  # ask YARN to end the application (repeated until it has ended)
    status: int | None = None


def step(state: FollowState, seen: Observation, now_s: float) -> tuple[FollowState, Decision]:
    """Return the next state and the actions after an observation at ``now_s`` (monotonic seconds). Pure."""
    if isinstance(seen, SignalReceived):
        return _interrupted(state, seen.number, now_s)
    if state.ending_since_s is not None and now_s - state.ending_since_s > END_S and not _is_over(seen):
        line = f"{state.application_id} did not end within {END_S:g} s; {_by_hand(state)}"
        return state, Decision((line,), status=state.ended_by or FAILED)
    if isinstance(seen, ResourceManagerUnreachable):
        return _unreachable(state, seen, now_s)
    if isinstance(seen, UnknownApplication):
        return state, Decision((f"{seen.problem}: its final state is unknown",), status=state.ended_by or FAILED)
    back = () if state.silent_since_s is None or state.by_rpc else ("the ResourceManager answers again",)
    state, result = _observed(dataclasses.replace(state, silent_since_s=None), seen.application, now_s)
    return state, dataclasses.replace(result, lines=back + result.lines)


def _interrupted(state: FollowState, number: int, now_s: float) -> tuple[FollowState, Decision]:
    """Request the end at the first signal, and leave at the second."""
    name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
    if state.ending_since_s is not None:
        line = f"second {name}: the command ends, but {state.application_id} may still be running; {_by_hand(state)}"
        return state, Decision((line,), status=state.ended_by or 128 + number)
    asked = dataclasses.replace(state, ending_since_s=now_s, ended_by=128 + number)
    lines = (
        f"{name}: ending {state.application_id} (a second one ends this command at once)",
        f"`hopsml runs ls` lists its runs ({state.application_id}_1 and so on), `hopsml runs resume RUN` continues one",
    )
    return asked, Decision(lines, end=True)


def _unreachable(state: FollowState, seen: ResourceManagerUnreachable, now_s: float) -> tuple[FollowState, Decision]:
    """Continue polling until the time limit has passed; use RPC before, or end or leave the application."""
    problem, since = seen.problem, now_s if state.silent_since_s is None else state.silent_since_s
    told = (f"{problem}; asking again",) if state.silent_since_s is None else ()
    if now_s - since > SILENCE_S:
        line = (
            f"no ResourceManager answered for {SILENCE_S:g} s, so {state.application_id} may still be running: "
            f"{problem}"
        )
        return state, Decision((line,), status=state.ended_by or FAILED)
    # ending or leaving the application cannot be undone: a refusal may pass, such as that of a server that starts
    at_once = state.on_lost_contact is OnLostContact.FOLLOW or state.ending_since_s is not None
    if not state.by_rpc and ((seen.is_refused and at_once) or now_s - since >= CONTACT_S):
        return _without_contact(dataclasses.replace(state, by_rpc=True, silent_since_s=since), problem, now_s)
    return dataclasses.replace(state, silent_since_s=since), Decision(told, end=state.ending_since_s is not None)


def _without_contact(state: FollowState, problem: str, now_s: float) -> tuple[FollowState, Decision]:
    """Apply ``--on-lost-contact``: the web services cannot be read, while the application may run."""
    what, option = state.application_id, f"--on-lost-contact {state.on_lost_contact}"
    if state.ending_since_s is not None:
        return state, Decision((f"{problem}; {what} is ended over Hadoop's RPC",), end=True)
    match state.on_lost_contact:
        case OnLostContact.KILL:
            asked = dataclasses.replace(state, ending_since_s=now_s, ended_by=FAILED)
            return asked, Decision((f"{problem}; {what} is ended over Hadoop's RPC ({option})",), end=True)
        case OnLostContact.LEAVE:
            return state, Decision(
                (f"{problem}; {what} may still be running ({option}); {_by_hand(state)}",), status=FAILED
            )
    line = f"{problem}; {what} is followed over Hadoop's RPC, without its output ({option})"
    return state, Decision((line,))


def _observed(state: FollowState, app: YarnApplication, now_s: float) -> tuple[FollowState, Decision]:
    """Print a change of state, and handle the wait in the queue."""
    if app.is_final:
        return dataclasses.replace(state, state=app.state), _over(state, app)
    lines: tuple[str, ...] = ()
    if app.state != state.state:
        lines = (f"{app.id}: {app.state}" + (f" (queue {app.queue})" if app.state == "ACCEPTED" else ""),)
        state = dataclasses.replace(state, state=app.state, reason="")
    if state.ending_since_s is not None:
        return state, Decision(lines, end=True)
    if not is_waiting_in_queue(app):
        return state, Decision(lines)
    return _waiting(state, app, lines, now_s)


def _waiting(
    state: FollowState, app: YarnApplication, lines: tuple[str, ...], now_s: float
) -> tuple[FollowState, Decision]:
    """Print the reason for waiting when it changes, and end the application after the time limit."""
    waited_s, reason = now_s - state.began_s, waiting_reason(app)
    if state.waiting_timeout_s is not None and waited_s > state.waiting_timeout_s:
        line = (
            f"queue {app.queue} had no room for {app.id} within {state.waiting_timeout_s:g} s ({reason}), so it is "
            "ended; request fewer resources, choose another queue (--conf spark.yarn.queue=...), or wait longer "
            "(--timeout)"
        )
        asked = dataclasses.replace(state, ending_since_s=now_s, ended_by=TIMED_OUT)
        return asked, Decision((*lines, line), end=True)
    if reason != state.reason or now_s - state.told_s >= REMIND_S:
        lines = (*lines, f"waiting for {waited_s:.0f} s: {reason}")
        state = dataclasses.replace(state, reason=reason, told_s=now_s)
    return state, Decision(lines)


def _over(state: FollowState, app: YarnApplication) -> Decision:
    """Print the outcome and determine the exit status."""
    took = f" after {app.finished_s - app.started_s:.0f} s" if app.finished_s > app.started_s > 0 else ""
    if app.succeeded:
        return Decision((f"{app.id}: SUCCEEDED{took}",), status=OK)
    ending = app.final_status if app.final_status not in ("", "UNDEFINED") else app.state
    line = f"{app.id}: {ending}{took}"
    if ending == "KILLED" and not state.ended_by:
        line += ", ended by YARN or by another user"
    if app.diagnostics:
        line += f": {app.diagnostics}"
    return Decision((line,), status=state.ended_by or FAILED)


def is_waiting_in_queue(app: YarnApplication) -> bool:
    """Return True if the application waits for its first container, and thus for capacity in its queue."""
    return not app.is_final and app.state != "RUNNING" and not app.am_log_url


def waiting_reason(app: YarnApplication) -> str:
    """Return YARN's reason for waiting in a few words, without dates and figures that change with each request."""
    if not app.diagnostics:
        return "YARN has given no reason yet"
    text = re.sub(r"^\[[^]]*\]\s*", "", app.diagnostics)
    head, _, details = text.partition("Details :")
    head = re.sub(r"\s*Last Node which was processed.*", "", head).strip().rstrip(".")
    shown = [
        part.strip()
        for part in details.split(";")
        if re.match(r"\s*(AM Resource Request|Queue AM Resource Usage)", part)
    ]
    return "; ".join([" ".join(head.split()), *shown])


def is_ended_by_script(app: YarnApplication) -> bool:
    """Return True if the script itself ended the application.

    The reason is then in its output, not in Spark's log.
    """
    return app.diagnostics.startswith("User application exited with status")


def _is_over(seen: Observation) -> bool:
    return isinstance(seen, StateObserved) and seen.application.is_final


def _by_hand(state: FollowState) -> str:
    return f"end it with `yarn application -kill {state.application_id}`"


POLL_S = 1.0
RPC_POLL_S = 5.0  # each request starts a JVM
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


class ApplicationClient(Protocol):
    """Client of the ResourceManager, over its web services or over RPC."""

    def application(self, application_id: str) -> YarnApplication:
        """Return the state of one application."""

    def kill(self, application_id: str) -> None:
        """Request the end of an application."""


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
    on_lost_contact: OnLostContact = OnLostContact.FOLLOW,
    rpc: ApplicationClient | None = None,
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
        on_lost_contact: what to do if the web services refuse or do not answer for a minute; the application is followed
            over RPC from the first refusal on.
        rpc: client for that case; default: that of the spark-submit on the path.
    """
    other = rpc or RpcClient("spark-submit")
    yarn = yarn or ResourceManager.from_environment()
    waiter = interrupts or NoInterrupts()
    state = FollowState(application_id, time.monotonic(), waiting_timeout_s, on_lost_contact=on_lost_contact)
    output = DriverOutput(show, notify, log_offset)
    application: YarnApplication | None = None
    number: int | None = None
    while True:
        seen: Observation = observe(yarn, application_id) if number is None else SignalReceived(number)
        if state.by_rpc and isinstance(seen, ResourceManagerUnreachable):
            seen = observe(other, application_id)
        if isinstance(seen, StateObserved):
            application = seen.application
            output.show_new(application)
        state, todo = step(state, seen, time.monotonic())
        client: ApplicationClient = other if state.by_rpc else yarn
        if todo.status is None:
            _do(todo, client, application_id, notify)
            number = waiter.wait(max(poll_s, RPC_POLL_S) if state.by_rpc else poll_s)
            continue
        if application is not None and application.is_final:
            output.show_remaining(application, waiter, poll_s)
            if todo.status == FAILED and not is_ended_by_script(application):
                output.show_errors(application)
        _do(todo, client, application_id, notify)
        known = application or YarnApplication(application_id, "", "", "UNDEFINED")
        return ApplicationResult(application_id, todo.status, known.final_status, known.diagnostics)


def end_application(
    application_id: str, *, yarn: ResourceManager | None = None, timeout_s: float = 60.0
) -> YarnApplication:
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
    yarn = yarn or ResourceManager.from_environment()
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
            raise ClusterUnavailable(
                f"{application_id} has not ended within {timeout_s:g} s of the request; end it "
                "with `yarn application -kill`"
            )
        time.sleep(0.2)


def observe(yarn: ApplicationClient, application_id: str) -> Observation:
    """Return the present state of an application; an error of the request becomes an observation as well."""
    try:
        return StateObserved(yarn.application(application_id))
    except ApplicationNotFound as error:
        return UnknownApplication(str(error))
    except ClusterUnavailable as error:
        return ResourceManagerUnreachable(str(error))
    except ClusterError as error:
        return ResourceManagerUnreachable(str(error), is_refused=True)


def _do(todo: Decision, yarn: ApplicationClient, application_id: str, notify: Callable[[str], None]) -> None:
    """Print the lines of a decision, and request the application's end if that is decided."""
    for line in todo.lines:
        notify(line)
    if todo.end:
        try:
            yarn.kill(application_id)
        except ClusterUnavailable:
            pass  # repeated after the next observation
        except ClusterError as error:
            notify(f"the application cannot be ended: {error}")


class DriverOutput:
    """Incremental display of the driver's output; a new attempt starts from the beginning."""

    def __init__(self, show: Callable[[str], None], notify: Callable[[str], None], offset: int = 0) -> None:
        self._show, self._notify = show, notify
        self._offset = offset
        self._container = ""
        self._problem = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._complete = False

    def show_new(self, application: YarnApplication) -> bool:
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
            self._notify(f"a new attempt is running in {part.container}")
            self._container, self._offset = part.container, 0
            return False
        if part.offset > self._offset:
            self._notify(f"{part.offset - self._offset} bytes of the driver's output are not shown")
        self._container, self._offset, self._complete = part.container, part.end, part.complete
        if text := self._decoder.decode(part.data):
            self._show(text)
        return part.complete

    def show_remaining(self, application: YarnApplication, waiter: Waiter, poll_s: float) -> None:
        """Show the remaining output of an application that has ended; give up at a signal, or if the log is late."""
        deadline = time.monotonic() + DRAIN_S
        while application.am_log_url and not self.show_new(application):
            if time.monotonic() > deadline:
                self._notify(
                    "the end of the driver's output is not available yet; later run: yarn logs -applicationId "
                    f"{application.id}"
                )
                return
            if waiter.wait(min(poll_s, 0.5)) is not None:
                return

    def show_errors(self, application: YarnApplication) -> None:
        """Print the end of Spark's own log, which has the reason if the script's output has not."""
        if text := logs.tail(application, "stderr", TAIL_BYTES).strip():
            self._notify(f"the end of the driver's stderr:\n{text}")
