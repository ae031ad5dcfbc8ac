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
OVERDUE_PART = 0.15  # of the life of a keytab login's tokens; Spark replaces them when a quarter is left
FORMAT = "%Y-%m-%d %H:%M:%S"
_UNKNOWN_END = "it is unknown when the delegation tokens of this application end, as they do not say so"


@dataclass(frozen=True)
class TokensObtained:
    """Tokens were obtained or looked at.

    Attributes:
        now_s: when.
        mark: identifies the tokens; unchanged as long as they are the same.
        life_s: seconds for which they can be used without being renewed by anybody; 0: unknown.
        longest_s: seconds until the end of their maximum life, even if they are renewed; 0: unknown.
        ticket_s: seconds until the ticket ends with which further ones can be obtained; 0: unknown, or no ticket.
        missing: stores for which no tokens could be obtained this time, with the reasons; "" for none.
    """

    now_s: float
    mark: str
    life_s: float = 0.0
    longest_s: float = 0.0
    ticket_s: float = 0.0
    missing: str = ""


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
    """Action: let processes use the tokens with which they were started, as the later ones end or have ended."""


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
        is_withdrawn: processes have returned to these.
        due_s: when to obtain or look next.
        mark: of the tokens that were given to all processes; "" for none.
        got_s: when these were found.
        usable_s: when these can no longer be used; 0: unknown.
        is_bound: they end at ``usable_s`` at the latest, and before if nobody renews them.
        is_replaced: another program has replaced tokens of the application by ones that last longer.
        ends_s: when access ends unless the user does something; 0: never, or unknown.
        began_s: when that end was learned.
        warnings: number of warnings about that end.
        failures: failed attempts since the last successful one.
        failure: text about them.
        is_partial: the last of them has concerned only some stores, or tokens that can still be used.
        warned_s: when the last warning about them was given.
    """

    obtains: bool = False
    extends: bool = False
    is_backed: bool = False
    backed_s: float = 0.0
    is_withdrawn: bool = False
    due_s: float = 0.0
    mark: str = ""
    got_s: float = 0.0
    usable_s: float = 0.0
    is_bound: bool = False
    is_replaced: bool = False
    ends_s: float = 0.0
    began_s: float = 0.0
    warnings: int = 0
    failures: int = 0
    failure: str = ""
    is_partial: bool = False
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


def notice(state: TokenState) -> str:
    """Return what the user of a run that starts now must know about its access to HDFS; "" for nothing."""
    if state.failure:
        return state.failure
    if state.ends_s:
        return _until(state) if state.warnings or not state.is_replaced else ""
    return _UNKNOWN_END if state.mark and not state.obtains and not state.extends else ""


def retry_s(failures: int, left_s: float) -> float:
    """Return the seconds until the next attempt.

    Args:
        failures: number of failed attempts, at least 1.
        left_s: seconds for which earlier tokens can be used; 0 or less without any.
    """
    pause_s = min(RETRY_S * 2.0 ** min(failures - 1, 10), MOST_RETRY_S)
    return min(pause_s, max(LEAST_S, left_s / 8)) if left_s > 0 else pause_s  # several attempts before their end


def obtain_again_s(life_s: float) -> float:
    """Return the seconds after which tokens of this life, in seconds, are to be obtained anew."""
    return _bounded(life_s * PART_OF_LIFE, MOST_OBTAIN_S)


def _obtained(state: TokenState, event: TokensObtained) -> tuple[TokenState, tuple[Action, ...]]:
    actions: list[Action] = []
    life_s = event.life_s or event.longest_s or UNKNOWN_LIFE_S
    after_s = obtain_again_s(life_s) if state.obtains else _bounded(life_s / LOOKS_PER_LIFE, MOST_LOOK_S)
    later = replace(state, due_s=event.now_s + after_s)
    if event.mark != state.mark:
        actions.append(ShipTokens())
        known_s = event.life_s or event.longest_s
        usable_s = event.now_s + known_s if known_s else 0.0
        later = replace(
            later,
            mark=event.mark,
            got_s=event.now_s,
            usable_s=usable_s,
            is_bound=known_s > 0 and not event.life_s,
            is_withdrawn=False,
        )
    if state.is_backed and not state.backed_s:  # YARN's tokens were obtained shortly before the first of these
        later = replace(later, backed_s=event.now_s + event.longest_s)
    if _is_overdue(later, event.now_s) and _is_backed_longer(later) and not later.is_withdrawn:
        later = replace(later, is_withdrawn=True)
        actions.append(WithdrawTokens())
    if problem := _problem(later, event):
        later, warnings = _failing(later, event.now_s, problem, is_partial=True)
        if event.missing:
            later = replace(later, due_s=event.now_s + min(after_s, retry_s(later.failures, 0.0)))
        actions += warnings
    else:
        actions += [TellUser("delegation tokens for HDFS are obtained again")] * bool(state.failures)
        later = replace(later, failures=0, failure="", is_partial=False, warned_s=0.0)
    later, news = _with_end(later, event.now_s, _ends(later, event, life_s, after_s), is_first=not state.mark)
    return later, (*actions, *news)


def _with_end(state: TokenState, now_s: float, ends_s: float, *, is_first: bool) -> tuple[TokenState, list[Action]]:
    """Return the state with the end of access, and the announcement of one that the user does not expect."""
    is_of_others = not state.obtains and not state.extends
    if abs(ends_s - state.ends_s) <= LEAST_S:
        return state, [TellUser(_UNKNOWN_END)] if is_first and is_of_others and not ends_s else []
    # Whoever replaces the tokens of others will do so again; ``_ticked`` warns if it does not happen.
    is_expected = is_of_others and not is_first and ends_s > state.ends_s
    later = replace(state, ends_s=ends_s, began_s=now_s, warnings=0, is_replaced=state.is_replaced or is_expected)
    return later, [TellUser(_until(later))] if ends_s and not is_expected else []


def _ends(state: TokenState, event: TokensObtained, life_s: float, after_s: float) -> float:
    """Return when access ends unless the user does something; 0 if never, or if it is unknown.

    Args:
        state: state with the present tokens.
        event: event of these tokens.
        life_s: their life, in seconds.
        after_s: seconds after which tokens are obtained anew, so that the last ones may be as old when the ticket ends.
    """
    if state.extends:
        return 0.0
    if state.obtains:
        own_s = event.now_s + life_s + max(0.0, event.ticket_s - after_s)
        return max(own_s, state.backed_s) if event.ticket_s else 0.0
    return event.now_s + event.longest_s if event.longest_s else 0.0


def _problem(state: TokenState, event: TokensObtained) -> str:
    """Return what is wrong although tokens were found; "" for nothing."""
    if event.missing:
        return f"delegation tokens could not be obtained for {event.missing}; it is tried again"
    if not _is_overdue(state, event.now_s):
        return ""
    backed = f"; executors use those of the submission until {_date(state.backed_s)}" if state.is_withdrawn else ""
    return (
        f"Spark has obtained no new delegation tokens with the keytab since {_date(state.got_s)}, and the present ones "
        f"{'end' if state.usable_s > event.now_s else 'ended'} at {_date(state.usable_s)} unless somebody renews them"
        f"{backed}; check that the keytab has the principal's present key and that the KDC answers (`hopsml doctor`)"
    )


def _is_overdue(state: TokenState, now_s: float) -> bool:
    """Return True if Spark should have replaced the tokens of its keytab login by now."""
    left_s = state.usable_s - now_s
    return bool(state.extends and state.usable_s) and left_s <= OVERDUE_PART * (state.usable_s - state.got_s)


def _is_backed_longer(state: TokenState) -> bool:
    """Return True if YARN renews the tokens with which processes were started beyond the end of the present ones."""
    return state.is_backed and state.backed_s > state.usable_s + LEAST_S


def _failing(state: TokenState, now_s: float, text: str, *, is_partial: bool) -> tuple[TokenState, tuple[Action, ...]]:
    """Return the state after one more failure, and the warning, which is repeated hourly."""
    failures = state.failures if state.is_partial == is_partial else 0
    later = replace(state, failures=failures + 1, failure=text, is_partial=is_partial)
    if failures and now_s - state.warned_s < REPEAT_S:
        return later, ()
    return replace(later, warned_s=now_s), (TellUser(text),)


def _failed(state: TokenState, event: ObtainFailed) -> tuple[TokenState, tuple[Action, ...]]:
    later, actions = _failing(state, event.now_s, _failure(state, event), is_partial=False)
    left_s = state.usable_s - event.now_s
    later = replace(later, due_s=event.now_s + retry_s(later.failures, left_s))
    if state.mark and state.obtains and state.usable_s and left_s <= 0:
        later = replace(later, mark="", usable_s=0.0)
        actions = (*actions, WithdrawTokens())
    return later, actions


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
    if state.is_replaced:
        return f"the delegation tokens of this application end at {when} unless they are replaced once more before"
    return (
        f"the delegation tokens of this application end at {when} and it has neither ticket nor keytab to obtain others; "
        "submit with spark.kerberos.keytab and spark.kerberos.principal for a longer run"
    )


def _failure(state: TokenState, event: ObtainFailed) -> str:
    if not state.mark:
        return f"no delegation tokens for HDFS could be obtained: {event.reason}; it is tried again"
    until = f"; the present ones can be used until {_date(state.usable_s)}" if state.usable_s > event.now_s else ""
    until += " at the latest" if until and state.is_bound else ""
    return f"new delegation tokens for HDFS could not be obtained: {event.reason}{until}; it is tried again"


def _date(seconds: float) -> str:
    return time.strftime(FORMAT, time.localtime(seconds))
