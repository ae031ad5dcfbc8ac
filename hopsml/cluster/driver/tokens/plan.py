"""Decides when the driver obtains delegation tokens and what it does with them: ``(state, event) -> state, actions``.

A driver that obtains tokens itself, with a Kerberos ticket, does so at half of their life. One whose tokens another
program renews (Spark with a keytab, YARN, the owner of a token file) looks for new ones often, which costs it little.
All times are seconds since the epoch of this process's clock: lives count from the time at which a token was obtained,
so that a NameNode with another clock does not matter.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

PART_OF_LIFE = 0.5  # after which tokens are obtained anew
LOOKS_PER_LIFE = 20  # of one that looks for the tokens of another program
LEAST_S, MOST_LOOK_S, MOST_OBTAIN_S = 2.0, 60.0, 6 * 3600.0
UNKNOWN_LIFE_S = 3600.0  # of tokens that do not say how long they last
RETRY_S, MOST_RETRY_S = 5.0, 300.0
REPEAT_S = 3600.0  # between two warnings about failures that last
WARN_PARTS = (0.25, 0.05)  # of the time until the end of access at which warnings are due
FORMAT = "%Y-%m-%d %H:%M:%S"


@dataclass(frozen=True)
class TokensObtained:
    """Tokens were obtained or looked at.

    Attributes:
        now_s: when.
        mark: identifies the tokens; unchanged as long as they are the same.
        life_s: seconds for which they can be used without being renewed by anybody; 0: unknown.
        longest_s: seconds until the end of their maximum life, even if they are renewed; 0: unknown.
        ticket_s: seconds until the ticket ends with which further ones can be obtained; 0: unknown, or no ticket.
    """

    now_s: float
    mark: str
    life_s: float = 0.0
    longest_s: float = 0.0
    ticket_s: float = 0.0


@dataclass(frozen=True)
class ObtainFailed:
    """Tokens could not be obtained, for this reason."""

    now_s: float
    reason: str


@dataclass(frozen=True)
class TimePassed:
    """Time has passed."""

    now_s: float


@dataclass(frozen=True)
class ObtainTokens:
    """Action: obtain tokens, or look at those of another program."""


@dataclass(frozen=True)
class ShipTokens:
    """Action: give the tokens that were obtained last to all processes."""


@dataclass(frozen=True)
class WithdrawTokens:
    """Action: let all processes use the tokens with which they were started, as the later ones have expired."""


@dataclass(frozen=True)
class TellUser:
    """Action: tell the user this."""

    text: str


Action = ObtainTokens | ShipTokens | WithdrawTokens | TellUser
Event = TokensObtained | ObtainFailed | TimePassed


@dataclass(frozen=True)
class TokenState:
    """What is known about the tokens.

    Attributes:
        obtains: the driver obtains them itself, with a ticket.
        extends: another program obtains new ones without limit (Spark with a keytab).
        is_backed: processes were started with tokens that YARN renews, and can return to them.
        backed_s: when these end; 0: unknown.
        due_s: when to obtain or look next.
        mark: of the tokens that were given to all processes; "" for none.
        usable_s: when these can no longer be used; 0: unknown.
        ends_s: when access ends unless the user does something; 0: never, or unknown.
        began_s: when that end was learned.
        warnings: number of warnings about that end.
        failures: failed attempts since the last successful one.
        warned_s: when the last warning about them was given.
    """

    obtains: bool = False
    extends: bool = False
    is_backed: bool = False
    backed_s: float = 0.0
    due_s: float = 0.0
    mark: str = ""
    usable_s: float = 0.0
    ends_s: float = 0.0
    began_s: float = 0.0
    warnings: int = 0
    failures: int = 0
    warned_s: float = 0.0


def step(state: TokenState, event: Event) -> tuple[TokenState, tuple[Action, ...]]:
    """Return the next state and what is to be done."""
    match event:
        case TokensObtained():
            return _obtained(state, event)
        case ObtainFailed():
            return _failed(state, event)
        case TimePassed():
            return _ticked(state, event.now_s)


def _obtained(state: TokenState, event: TokensObtained) -> tuple[TokenState, tuple[Action, ...]]:
    actions: list[Action] = []
    if state.failures:
        actions.append(TellUser("delegation tokens for HDFS are obtained again"))
    is_new = event.mark != state.mark
    if is_new:
        actions.append(ShipTokens())
    life_s = event.life_s or event.longest_s or UNKNOWN_LIFE_S
    after_s = (
        _bounded(life_s * PART_OF_LIFE, MOST_OBTAIN_S)
        if state.obtains
        else _bounded(life_s / LOOKS_PER_LIFE, MOST_LOOK_S)
    )
    usable_s = event.now_s + (event.life_s or event.longest_s) if is_new else state.usable_s
    if state.is_backed and not state.backed_s:  # YARN's tokens were obtained shortly before the first of these
        state = replace(state, backed_s=event.now_s + event.longest_s)
    ends_s = _ends(state, event)
    later = replace(state, due_s=event.now_s + after_s, mark=event.mark, usable_s=usable_s, failures=0, warned_s=0.0)
    if ends_s > state.ends_s + LEAST_S or (not ends_s and state.ends_s):  # a renewed ticket, or newer tokens
        later = replace(later, ends_s=ends_s, began_s=event.now_s, warnings=0)
        if ends_s:
            actions.append(TellUser(_until(later)))
    return later, tuple(actions)


def _ends(state: TokenState, event: TokensObtained) -> float:
    """Return when access ends unless the user does something; 0 if never, or if it is unknown."""
    if state.extends:
        return 0.0
    if state.obtains:
        return max(event.now_s + event.ticket_s + event.life_s, state.backed_s) if event.ticket_s else 0.0
    return event.now_s + event.longest_s if event.longest_s else 0.0


def _failed(state: TokenState, event: ObtainFailed) -> tuple[TokenState, tuple[Action, ...]]:
    failures = state.failures + 1
    pause_s = min(RETRY_S * 2 ** min(failures - 1, 10), MOST_RETRY_S)
    left_s = state.usable_s - event.now_s
    if left_s > 0:  # tokens that are still good: there is time for several attempts until their end
        pause_s = min(pause_s, max(LEAST_S, left_s / 8))
    later = replace(state, failures=failures, due_s=event.now_s + pause_s)
    actions: list[Action] = []
    if failures == 1 or event.now_s - state.warned_s >= REPEAT_S:
        later = replace(later, warned_s=event.now_s)
        actions.append(TellUser(_failure(state, event)))
    if state.mark and state.obtains and state.usable_s and left_s <= 0:
        later = replace(later, mark="", usable_s=0.0)
        actions.append(WithdrawTokens())
    return later, tuple(actions)


def _ticked(state: TokenState, now_s: float) -> tuple[TokenState, tuple[Action, ...]]:
    actions: list[Action] = []
    if now_s >= state.due_s:
        actions.append(ObtainTokens())
    if state.ends_s and state.warnings < len(WARN_PARTS):
        span_s = state.ends_s - state.began_s
        due = sum(now_s >= state.ends_s - part * span_s for part in WARN_PARTS)
        if due > state.warnings:
            state = replace(state, warnings=due)
            actions.append(TellUser(_until(state)))
    return state, tuple(actions)


def _bounded(seconds: float, most: float) -> float:
    return max(LEAST_S, min(seconds, most))


def _until(state: TokenState) -> str:
    """Return until when the application can use HDFS, and what extends that."""
    when = _date(state.ends_s)
    if state.obtains:
        return (
            f"without a new Kerberos ticket this application can use HDFS until {when}; run `kinit` for the same ticket "
            "cache before, or submit with spark.kerberos.keytab and spark.kerberos.principal"
        )
    return (
        f"the delegation tokens of this application end at {when} and it has neither ticket nor keytab to obtain others; "
        "submit with spark.kerberos.keytab and spark.kerberos.principal for a longer run"
    )


def _failure(state: TokenState, event: ObtainFailed) -> str:
    if not state.mark:
        return f"no delegation tokens for HDFS could be obtained: {event.reason}; it is tried again"
    until = f"; the present ones can be used until {_date(state.usable_s)}" if state.usable_s > event.now_s else ""
    return f"new delegation tokens for HDFS could not be obtained: {event.reason}{until}; it is tried again"


def _date(seconds: float) -> str:
    return time.strftime(FORMAT, time.localtime(seconds))
