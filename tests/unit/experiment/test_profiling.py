"""Tests of profile requests at the driver: which are accepted, their answers, and how many profiles are stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopsml.cluster.agent.profiler import explain_failure
from hopsml.cluster.driver.run_state import Change
from hopsml.cluster.shared.protocol import TakeProfile
from hopsml.errors import ArgumentError
from hopsml.experiment import messages
from hopsml.experiment.messages import ProfileRequestHandler
from hopsml.storage import mailbox
from hopsml.storage.filesystem import for_url
from hopsml.storage.mailbox import MOST_KEPT_PROFILES, PROFILE_PATIENCE_S, ProfileRequest
from hopsml.storage.run_dir import RunDir

pytestmark = pytest.mark.fast


class Driver:
    """Driver that polls on request and records its requests to agents."""

    def __init__(self, folder: Path) -> None:
        self.directory, self.requests = RunDir(str(folder)), list[tuple[int, TakeProfile]]()
        self.profiling = ProfileRequestHandler(
            self.directory, "run", lambda rank, request: self.requests.append((rank, request))
        )

    def request_profile(self, rank: int = 1) -> ProfileRequest:
        request = mailbox.checked_profile_request(rank, 10, "speedscope")
        mailbox.request_profile(self.directory, request, request.asked)
        return request

    def found(self) -> ProfileRequest:
        newest = mailbox.read_profile_request(self.directory)
        assert newest is not None
        return newest

    def agent_reports(self, request_id: str, problem: str = "") -> None:
        self.profiling.on_change(Change("profile", 1, problem, data=request_id.encode()))


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    made = Driver(tmp_path)
    made.profiling.handle_requests()  # as at the start of a run
    return made


def test_profile_request_is_forwarded_once_and_answered_when_taken(driver: Driver) -> None:
    request = driver.request_profile()
    driver.profiling.handle_requests()
    driver.profiling.handle_requests()
    ((rank, asked),) = driver.requests
    assert (rank, asked.wish, asked.seconds) == (1, request.id, 10) and driver.found().state == "taking"
    driver.agent_reports("another's")
    driver.profiling.handle_requests()
    assert driver.found().state == "taking"
    driver.agent_reports(request.id)
    driver.profiling.handle_requests()
    assert (driver.found().state, driver.found().answer) == ("done", asked.path)
    assert asked.path.startswith("profiles/rank-1-") and asked.path.endswith(".speedscope.json")


def test_profile_request_from_before_this_attempt_is_refused(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    driver.request_profile()
    driver.profiling.handle_requests()
    assert not driver.requests and "before this attempt" in driver.found().answer
    driver.request_profile()
    driver.profiling.handle_requests()
    assert len(driver.requests) == 1


def test_second_profile_request_is_refused_until_the_first_times_out(driver: Driver) -> None:
    first = driver.request_profile()
    with pytest.raises(
        ArgumentError, match=r"a profile of rank 1 is being taken for 10 s, as requested by .*; repeat the request"
    ):
        driver.request_profile(2)
    later = mailbox.checked_profile_request(2, 10, "raw")
    mailbox.request_profile(driver.directory, later, first.asked + 10 + PROFILE_PATIENCE_S)
    mailbox.record_profile_state(driver.directory, first, "done", "too late")
    assert driver.found() == later, "what was said of the first does not take its place"


def test_silent_agent_is_named_in_the_profile_answer(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.request_profile()
    driver.profiling.handle_requests()
    until = messages.time.monotonic() + 10 + PROFILE_PATIENCE_S + 1
    monkeypatch.setattr(messages.time, "monotonic", lambda: until)
    driver.profiling.handle_requests()
    assert driver.found().answer == "the agent of rank 1 has not answered: it or its worker is stopped, or has ended"


def test_end_of_the_run_fails_the_pending_profile_request(driver: Driver) -> None:
    driver.request_profile()
    driver.profiling.handle_requests()
    driver.profiling.give_up()
    assert (driver.found().state, driver.found().answer) == ("failed", "the run has ended")


def test_number_of_stored_profiles_is_limited(driver: Driver) -> None:
    for number in range(MOST_KEPT_PROFILES + 3):
        url = f"{driver.directory.profiles}/rank-0-{number:03d}.txt"
        for_url(url).write_bytes(url, b"")
    request = driver.request_profile()
    driver.profiling.handle_requests()
    driver.agent_reports(request.id, "no such thing")
    driver.profiling.handle_requests()
    names = [entry.name for entry in mailbox.list_profiles(driver.directory)]
    assert len(names) == MOST_KEPT_PROFILES and f"rank-0-{MOST_KEPT_PROFILES + 2:03d}.txt" in names


@pytest.mark.parametrize("values", [(-1, 10, "raw"), (0, 0, "raw"), (0, 301, "raw"), (0, 10, "png")])
def test_invalid_profile_request_is_refused(values: tuple[int, int, str]) -> None:
    with pytest.raises(ArgumentError):
        mailbox.checked_profile_request(*values)


def test_py_spy_errors_are_explained_with_a_remedy() -> None:
    refused = "Error: Permission Denied: Try running again with elevated permissions by going 'sudo env ...'"
    assert "kernel.yama.ptrace_scope is 2 there" in explain_failure(refused, 1, False, "2")
    assert "CAP_SYS_PTRACE" in explain_failure("Error: Operation not permitted (os error 1)", 1, False, "")
    assert "--idle" in explain_failure("Error: No stack counts found", 1, False, "")
    assert explain_failure("Error: no such process", 1, True, "") == "the worker ended before it could be profiled"
    assert explain_failure("x\nError: Failed\n\n", 1, False, "") == "py-spy has ended with status 1: Error: Failed"
