"""Tests of following an application without a cluster: polls in, lines and exit statuses out."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from hopsml.errors import ApplicationNotFound, ClusterError, ClusterUnavailable
from hopsml.submission.follower import (
    CONTACT_S,
    END_S,
    REMIND_S,
    SILENCE_S,
    Decision,
    FollowState,
    Observation,
    OnLostContact,
    ResourceManagerUnreachable,
    SignalReceived,
    StateObserved,
    UnknownApplication,
    step,
)
from hopsml.yarn import YarnApplication, rpc

pytestmark = pytest.mark.fast

ID = "application_1763690000000_0001"
FULL = (
    "[Sat Nov 21 03:19:38 +0000 2026] Application is added to the scheduler and is not yet activated. Queue's AM resource "
    "limit exceeded.  Details : AM Partition = <DEFAULT_PARTITION>; AM Resource Request = <memory:8000, vCores:1>; Queue "
    "Resource Limit for AM = <memory:16384, vCores:16>; Queue AM Resource Usage = <memory:16000, vCores:2>;"
)


def app(state: str, final: str = "UNDEFINED", diagnostics: str = "", log: str = "") -> StateObserved:
    return StateObserved(YarnApplication(ID, "digits", state, final, diagnostics, queue="root.default", am_log_url=log))


def follow(*seen: tuple[float, Observation], timeout_s: float | None = None) -> list[Decision]:
    """Return the decisions for observations, each with its time."""
    state, steps = FollowState(ID, 0.0, timeout_s), []
    for now_s, observation in seen:
        state, result = step(state, observation, now_s)
        steps.append(result)
    return steps


def lines(steps: list[Decision]) -> list[str]:
    return [line for each in steps for line in each.lines]


RUNNING = app("RUNNING", log="http://n/c")
KILLED = app("KILLED", "KILLED", "Application was killed by user root")


def test_successful_application_is_followed_to_exit_status_zero() -> None:
    steps = follow(
        (0, app("ACCEPTED")),
        (1, app("ACCEPTED", log="x")),
        (2, RUNNING),
        (3, RUNNING),
        (4, app("FINISHED", "SUCCEEDED")),
    )
    assert [each.status for each in steps] == [None] * 4 + [0]
    assert lines(steps) == [
        f"{ID}: ACCEPTED (queue root.default)",
        "waiting for 0 s: YARN has given no reason yet",
        f"{ID}: RUNNING",
        f"{ID}: SUCCEEDED",
    ]
    assert not any(each.end for each in steps)


@pytest.mark.parametrize(
    ("state", "final", "words"),
    [
        ("FINISHED", "FAILED", "FAILED: the reason"),
        ("FAILED", "FAILED", "FAILED: the reason"),
        ("KILLED", "KILLED", "KILLED, ended by YARN or by another user: the reason"),
        ("FINISHED", "UNDEFINED", "FINISHED: the reason"),
        ("FINISHED", "ENDED", "ENDED: the reason"),
    ],
)
def test_only_a_succeeded_application_has_exit_status_zero(state: str, final: str, words: str) -> None:
    (last,) = follow((0, app(state, final, "the reason")))
    assert last == Decision((f"{ID}: {words}",), status=1)


def test_wait_reason_is_printed_once_and_repeated_after_a_while() -> None:
    waiting = [
        (at, app("ACCEPTED", diagnostics=FULL.replace("03:19", f"03:{20 + at:.0f}")))
        for at in (0.0, 1.0, 2.0, REMIND_S)
    ]
    printed = lines(follow(*waiting))[1:]
    reason = (
        "Application is added to the scheduler and is not yet activated. Queue's AM resource limit exceeded; AM Resource "
        "Request = <memory:8000, vCores:1>; Queue AM Resource Usage = <memory:16000, vCores:2>"
    )
    assert printed == [f"waiting for 0 s: {reason}", f"waiting for 30 s: {reason}"]


def test_queue_timeout_ends_with_the_first_container() -> None:
    full, placed = (
        app("ACCEPTED", diagnostics=FULL),
        app("ACCEPTED", diagnostics="AM container is launched", log="http://n/c"),
    )
    steps = follow((0, full), (5.1, full), (6, full), (7, KILLED), timeout_s=5)
    assert [each.end for each in steps] == [False, True, True, False]
    assert "queue root.default had no room" in lines(steps)[2] and "within 5 s" in lines(steps)[2]
    assert "from outside" not in lines(steps)[-1]
    assert steps[-1].status == 124
    assert not any(each.end for each in follow((0, full), (4, placed), (60, placed), (99, RUNNING), timeout_s=5))


def test_signal_ends_the_application_and_a_second_one_detaches() -> None:
    steps = follow((0, RUNNING), (1, SignalReceived(signal.SIGINT)), (2, RUNNING), (3, KILLED))
    assert [each.end for each in steps] == [False, True, True, False]
    assert steps[-1].status == 130 and "Ctrl-C: ending" in lines(steps)[1]
    steps = follow((0, RUNNING), (1, SignalReceived(signal.SIGTERM)), (1.5, SignalReceived(signal.SIGINT)))
    assert steps[-1].status == 143 and "yarn application -kill" in lines(steps)[-1]


def test_signal_before_a_successful_end_does_not_change_the_exit_status() -> None:
    assert follow((0, RUNNING), (1, SignalReceived(signal.SIGINT)), (2, app("FINISHED", "SUCCEEDED")))[-1].status == 0


def test_application_that_does_not_end_after_a_signal_is_abandoned() -> None:
    steps = follow((0, RUNNING), (1, SignalReceived(signal.SIGTERM)), (END_S, RUNNING), (END_S + 2, RUNNING))
    assert [each.status for each in steps] == [None, None, None, 143]
    assert "did not end within" in lines(steps)[-1]


def test_unreachable_resource_manager_is_retried_for_a_limited_time() -> None:
    steps = follow(
        (0, RUNNING),
        (1, ResourceManagerUnreachable("nobody")),
        (2, ResourceManagerUnreachable("nobody")),
        (90, RUNNING),
        (91, app("FINISHED", "SUCCEEDED")),
    )
    assert lines(steps)[1:3] == ["nobody; asking again", "the ResourceManager answers again"]
    assert steps[-1].status == 0
    steps = follow(
        (0, RUNNING), (1, ResourceManagerUnreachable("nobody")), (2 + SILENCE_S, ResourceManagerUnreachable("nobody"))
    )
    assert steps[-1].status == 1 and "may still be running" in lines(steps)[-1]


REFUSED = ResourceManagerUnreachable("HTTP 401", is_refused=True)


@pytest.mark.parametrize(
    ("option", "ends", "status", "words"),
    [
        (OnLostContact.FOLLOW, False, None, "is followed over Hadoop's RPC, without its output"),
        (OnLostContact.KILL, True, None, "is ended over Hadoop's RPC (--on-lost-contact kill)"),
        (
            OnLostContact.LEAVE,
            False,
            1,
            "may still be running (--on-lost-contact leave); end it with `yarn application",
        ),
    ],
)
def test_refusal_is_handled_as_requested(option: OnLostContact, ends: bool, status: int | None, words: str) -> None:
    state = FollowState(ID, 0.0, on_lost_contact=option)
    state, _ = step(state, RUNNING, 0.0)
    state, refused = step(state, REFUSED, 1.0)
    if option is not OnLostContact.FOLLOW:
        assert refused == Decision(("HTTP 401; asking again",))
        state, refused = step(state, REFUSED, 1.0 + CONTACT_S)
    assert state.by_rpc and (refused.end, refused.status) == (ends, status)
    (line,) = refused.lines
    assert line.startswith("HTTP 401; ") and words in line and ID in line


def test_web_service_without_an_answer_is_replaced_by_rpc_after_a_while() -> None:
    state = FollowState(ID, 0.0)
    for now_s in (0.0, CONTACT_S - 1):
        state, result = step(state, ResourceManagerUnreachable("nobody"), now_s)
        assert not state.by_rpc
    state, result = step(state, ResourceManagerUnreachable("nobody"), CONTACT_S)
    assert state.by_rpc and "over Hadoop's RPC" in result.lines[0]
    state, result = step(state, app("FINISHED", "SUCCEEDED"), CONTACT_S + 5)
    assert result.status == 0


def test_application_that_rpc_does_not_reach_either_is_given_up() -> None:
    steps = follow(
        (0, RUNNING),
        (1, REFUSED),
        (60, ResourceManagerUnreachable("no answer")),
        (2 + SILENCE_S, ResourceManagerUnreachable("no answer")),
    )
    assert [each.status for each in steps] == [None, None, None, 1] and ID in lines(steps)[-1]


def test_ended_application_is_killed_over_rpc_if_the_web_service_refuses() -> None:
    steps = follow((0, RUNNING), (1, SignalReceived(signal.SIGINT)), (2, REFUSED), (3, KILLED))
    assert [each.end for each in steps[1:3]] == [True, True] and steps[-1].status == 130


REPORT = f"""SLF4J: text of a log
Application Report :
\tApplication-Id : {ID}
\tApplication-Name : digits
\tApplication-Type : SPARK
\tUser : alice
\tQueue : root.default
\tApplication Priority : 0
\tStart-Time : 1763690000500
\tFinish-Time : 0
\tProgress : 10%
\tState : RUNNING
\tFinal-State : UNDEFINED
\tTracking-URL : http://n:4040
\tDiagnostics : null
"""


def test_report_of_hadoops_client_is_parsed() -> None:
    found = rpc.parse_report(ID, REPORT)
    assert (found.id, found.state, found.final_status, found.diagnostics) == (ID, "RUNNING", "UNDEFINED", "")
    assert (found.user, found.queue, found.name, found.started_s) == ("alice", "root.default", "digits", 1763690000.5)
    for text in ("", "Application Report :\n\tState : RUNNING\n", REPORT.replace("_0001", "_0002")):
        with pytest.raises(ClusterError, match="cannot be read"):
            rpc.parse_report(ID, text)


@pytest.mark.parametrize(
    ("said", "status", "error", "words"),
    [
        ("Application with id 'application_1_1' doesn't exist in RM or Timeline Server.", 255, ApplicationNotFound, ID),
        (
            "Exception in thread main\n\tat x\nCaused by: Connection refused",
            1,
            ClusterUnavailable,
            "Connection refused",
        ),
    ],
)
def test_failure_of_hadoops_client_is_reported(
    tmp_path: Path, said: str, status: int, error: type[Exception], words: str
) -> None:
    """A program that prints what the real one prints: the real one is in tests/integration/yarn."""
    (tmp_path / "spark-class").write_text(f"#!/bin/sh\ncat <<'END'\n{said}\nEND\nexit {status}\n")
    (tmp_path / "spark-class").chmod(0o700)
    with pytest.raises(error, match=words):
        rpc.RpcClient(str(tmp_path / "spark-submit")).application(ID)


def test_unknown_application_has_exit_status_one() -> None:
    (last,) = follow((0, UnknownApplication("it knows no such application")))
    assert last.status == 1 and "its final state is unknown" in last.lines[0]


ANY = some.one_of(
    some.builds(
        app,
        some.sampled_from(["NEW", "SUBMITTED", "ACCEPTED", "RUNNING", "FINISHED", "FAILED", "KILLED"]),
        some.sampled_from(["UNDEFINED", "SUCCEEDED", "FAILED", "KILLED"]),
        some.sampled_from(["", FULL]),
        some.sampled_from(["", "http://n/c"]),
    ),
    some.builds(ResourceManagerUnreachable, some.just("nobody"), some.booleans()),
    some.builds(SignalReceived, some.sampled_from([signal.SIGINT, signal.SIGTERM])),
)


@settings(max_examples=100, deadline=None)
@given(some.lists(some.tuples(some.floats(0, 200), ANY), max_size=12), some.sampled_from([None, 1.0, 30.0]))
def test_random_observations_keep_exit_status_and_end_requests_consistent(
    seen: list[tuple[float, Observation]], timeout_s: float | None
) -> None:
    """Zero only for SUCCEEDED; a requested end is requested again until it occurs, and never withdrawn."""
    state, now_s, end_requested = FollowState(ID, 0.0, timeout_s), 0.0, False
    for pause_s, observation in seen:
        now_s += pause_s
        state, result = step(state, observation, now_s)
        is_over = isinstance(observation, StateObserved) and observation.application.is_final
        assert (result.status == 0) == (is_over and observation.application.final_status == "SUCCEEDED")  # type: ignore[union-attr]
        assert not is_over or result.status is not None
        if result.status is not None:
            return
        assert result.end or not end_requested
        end_requested = end_requested or result.end


def test_passing_refusals_do_not_kill_the_application() -> None:
    state = FollowState(ID, 0.0, on_lost_contact=OnLostContact.KILL)
    refused = ResourceManagerUnreachable("HTTP 500", is_refused=True)
    state, first = step(state, refused, 1.0)
    assert not first.end and first.lines == ("HTTP 500; asking again",)
    state, _ = step(state, RUNNING, 2.0)
    for at in (3.0, 2.9 + CONTACT_S):
        state, again = step(state, refused, at)
        assert not again.end
    state, last = step(state, refused, 3.0 + CONTACT_S)
    assert last.end and "is ended over Hadoop's RPC (--on-lost-contact kill)" in last.lines[0]


def test_requested_end_is_sent_over_rpc_at_the_first_refusal() -> None:
    state = FollowState(ID, 0.0, on_lost_contact=OnLostContact.KILL)
    state, _ = step(state, SignalReceived(signal.SIGINT), 1.0)
    state, result = step(state, ResourceManagerUnreachable("HTTP 401", is_refused=True), 2.0)
    assert result.end and state.by_rpc and state.ended_by == 130
