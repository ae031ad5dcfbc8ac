"""State machine that follows a YARN application: one observation in, lines to print and actions out. Pure.

    Observed, Unreachable, Unknown, Interrupted  ->  step  ->  lines to print, whether to end the application, exit status

The application waits in ACCEPTED until its queue has capacity, runs, and ends; every end has an exit status, and only
SUCCEEDED has 0.
"""

from __future__ import annotations

import dataclasses
import re
import signal
from dataclasses import dataclass

from hopsml.yarn import YarnApplication

OK, FAILED, TIMED_OUT = 0, 1, 124  # exit statuses; 128 + signal if a signal ended it
REMIND_S = 30.0  # seconds after which an unchanged reason for waiting is printed again
# seconds without an answer after which ResourceManagers are given up: a restart takes a minute or two
SILENCE_S = 600.0
END_S = 60.0  # seconds from the request to end it until that is given up


@dataclass(frozen=True)
class Observed:
    """Observation: the ResourceManager returned the application's state."""

    application: YarnApplication


@dataclass(frozen=True)
class Unreachable:
    """Observation: no ResourceManager answered; ``problem`` is the reason."""

    problem: str


@dataclass(frozen=True)
class Unknown:
    """Observation: the ResourceManager has no such application."""

    problem: str


@dataclass(frozen=True)
class Interrupted:
    """Observation: this process received a signal, SIGINT (Ctrl-C) or SIGTERM."""

    number: int


Observation = Observed | Unreachable | Unknown | Interrupted


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


@dataclass(frozen=True)
class Decision:
    """Actions after an observation; ``status`` is None until the application has ended."""

    lines: tuple[str, ...] = ()
    end: bool = False  # ask YARN to end the application (repeated until it has ended)
    status: int | None = None


def step(state: FollowState, seen: Observation, now_s: float) -> tuple[FollowState, Decision]:
    """Return the next state and the actions after an observation at ``now_s`` (monotonic seconds). Pure."""
    if isinstance(seen, Interrupted):
        return _interrupted(state, seen.number, now_s)
    if state.ending_since_s is not None and now_s - state.ending_since_s > END_S and not _is_over(seen):
        line = f"{state.application_id} did not end within {END_S:g} s; {_by_hand(state)}"
        return state, Decision((line,), status=state.ended_by or FAILED)
    if isinstance(seen, Unreachable):
        return _unreachable(state, seen.problem, now_s)
    if isinstance(seen, Unknown):
        return state, Decision((f"{seen.problem}: how it ended is not known",), status=state.ended_by or FAILED)
    back = () if state.silent_since_s is None else ("the ResourceManager answers again",)
    state, result = _observed(dataclasses.replace(state, silent_since_s=None), seen.application, now_s)
    return state, dataclasses.replace(result, lines=back + result.lines)


def _interrupted(state: FollowState, number: int, now_s: float) -> tuple[FollowState, Decision]:
    """Request the end at the first signal, and leave at the second."""
    name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
    if state.ending_since_s is not None:
        line = f"{name} again: left at once, {state.application_id} may still run; {_by_hand(state)}"
        return state, Decision((line,), status=state.ended_by or 128 + number)
    asked = dataclasses.replace(state, ending_since_s=now_s, ended_by=128 + number)
    return asked, Decision((f"{name}: ending {state.application_id} (once more leaves at once)",), end=True)


def _unreachable(state: FollowState, problem: str, now_s: float) -> tuple[FollowState, Decision]:
    """Continue polling until the time limit has passed."""
    since = now_s if state.silent_since_s is None else state.silent_since_s
    told = (f"{problem}; asking again",) if state.silent_since_s is None else ()
    if now_s - since > SILENCE_S:
        line = f"no ResourceManager answered for {SILENCE_S:g} s; {state.application_id} may still run: {problem}"
        return state, Decision((line,), status=state.ended_by or FAILED)
    return dataclasses.replace(state, silent_since_s=since), Decision(told, end=state.ending_since_s is not None)


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
    if not in_queue(app):
        return state, Decision(lines)
    return _waiting(state, app, lines, now_s)


def _waiting(
    state: FollowState, app: YarnApplication, lines: tuple[str, ...], now_s: float
) -> tuple[FollowState, Decision]:
    """Print the reason for waiting when it changes, and end the application after the time limit."""
    waited_s, reason = now_s - state.began_s, why_waiting(app)
    if state.waiting_timeout_s is not None and waited_s > state.waiting_timeout_s:
        line = (
            f"queue {app.queue} had no room for {app.id} within {state.waiting_timeout_s:g} s ({reason}); ending it: ask "
            "for less, name another queue (--conf spark.yarn.queue=...), or wait longer (--timeout)"
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
        line += ", ended from outside"
    if app.diagnostics:
        line += f": {app.diagnostics}"
    return Decision((line,), status=state.ended_by or FAILED)


def in_queue(app: YarnApplication) -> bool:
    """Return True if the application waits for its first container, and thus for capacity in its queue."""
    return not app.is_final and app.state != "RUNNING" and not app.am_log_url


def why_waiting(app: YarnApplication) -> str:
    """Return YARN's reason for waiting in a few words, without dates and figures that change with each request."""
    if not app.diagnostics:
        return "no reason given yet"
    text = re.sub(r"^\[[^]]*\]\s*", "", app.diagnostics)
    head, _, details = text.partition("Details :")
    head = re.sub(r"\s*Last Node which was processed.*", "", head).strip().rstrip(".")
    shown = [
        part.strip()
        for part in details.split(";")
        if re.match(r"\s*(AM Resource Request|Queue AM Resource Usage)", part)
    ]
    return "; ".join([" ".join(head.split()), *shown])


def script_said_why(app: YarnApplication) -> bool:
    """Return True if the script itself ended the application.

    The reason is then in its output, not in Spark's log.
    """
    return app.diagnostics.startswith("User application exited with status")


def _is_over(seen: Observation) -> bool:
    return isinstance(seen, Observed) and seen.application.is_final


def _by_hand(state: FollowState) -> str:
    return f"`yarn application -kill {state.application_id}` ends it"
