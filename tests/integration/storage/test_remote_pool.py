"""Tests of helper processes of the storage: lent, reused, killed when stuck, ended with their owner."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from hopsml.storage.remote.pool import AllHelpersBusy, HelperPool
from hopsml.storage.remote.store import ChannelClosed
from tests.helpers.clock import END_S

pytestmark = pytest.mark.local

NONSENSE = {"verb": "status", "base": "hdfs://", "options": {}, "url": "hdfs:///", "arguments": {}}


@pytest.fixture
def pool() -> Iterator[HelperPool]:
    pool = HelperPool(max_processes=2)
    yield pool
    pool.close()


def request_status(pool: HelperPool) -> tuple[int, object]:
    """Pid of the helper, and its answer to a request that fails at once: nothing is configured."""
    with pool.lend(30) as helper:
        helper.channel.send(NONSENSE, 30)
        return helper.process.pid, helper.channel.receive(30)


def test_helper_process_is_reused_in_the_same_environment(pool: HelperPool, monkeypatch: pytest.MonkeyPatch) -> None:
    first, answer = request_status(pool)
    assert isinstance(answer, dict)
    assert answer["error"] == "RuntimeError"
    assert "fs.defaultFS" in answer["text"]
    assert request_status(pool)[0] == first
    monkeypatch.setenv("HADOOP_USER_NAME", "somebody-else")
    second, _ = request_status(pool)
    assert second != first
    assert not psutil.pid_exists(first)


def test_helper_lent_at_close_ends_after_its_call(pool: HelperPool) -> None:
    with pool.lend(30) as helper:
        pool.close()
        helper.channel.send(NONSENSE, 30)
        assert isinstance(helper.channel.receive(30), dict)
    assert not psutil.pid_exists(helper.process.pid)
    again, _ = request_status(pool)
    assert request_status(pool)[0] == again


def test_number_of_helper_processes_is_limited(pool: HelperPool) -> None:
    with (
        pool.lend(30),
        pool.lend(30),
        pytest.raises(AllHelpersBusy, match="all 2 storage helper processes"),
        pool.lend(0.05),
    ):
        pass


@pytest.mark.parametrize("error", [TimeoutError, ChannelClosed, KeyboardInterrupt])
def test_helper_in_an_unknown_state_is_killed(pool: HelperPool, error: type[BaseException]) -> None:
    def fail() -> None:
        with pool.lend(30) as helper:
            pids.append(helper.process.pid)
            raise error

    pids: list[int] = []
    with pytest.raises(error):
        fail()
    assert not psutil.pid_exists(pids[0])
    assert request_status(pool)[0] != pids[0]


def test_helper_is_not_reused_after_any_error(pool: HelperPool) -> None:
    """A guard of the user's (an alarm, a test's timeout) may end a call whose answer still comes: to whoever is next."""

    def fail() -> None:
        with pool.lend(30) as helper:
            pids.append(helper.process.pid)
            raise ZeroDivisionError

    pids: list[int] = []
    with pytest.raises(ZeroDivisionError):
        fail()
    assert request_status(pool)[0] != pids[0]


def test_forked_child_starts_its_own_helper(pool: HelperPool) -> None:
    first, _ = request_status(pool)
    pid = os.fork()
    if pid == 0:
        try:
            own, _ = request_status(pool)
            pool.close()
            os._exit(0 if own != first else 1)
        finally:
            os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0
    assert request_status(pool)[0] == first


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "in a blocked call"])
def test_helper_ends_when_its_owner_is_killed(busy: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"hdfs://127.0.0.1:{silent.getsockname()[1]}/"
        script = f"""
import signal, sys
from hopsml.storage.remote.pool import POOL
with POOL.lend(60) as helper:
    helper.channel.send({{"verb": "status", "base": {url!r}, "options": {{}}, "url": {url!r}, "arguments": {{}}}})
    if not {busy}:
        helper.channel.receive(30)
    print(helper.process.pid, flush=True)
    signal.pause()
"""
        if not busy:
            script = script.replace(url, "hdfs:///")
        owner = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        assert owner.stdout is not None
        try:
            helper = psutil.Process(int(owner.stdout.readline()))
            if busy:
                connection, _ = silent.accept()  # it is inside the call now
            owner.kill()
            assert psutil.wait_procs([helper], timeout=10)[1] == []
            if busy:
                connection.close()
        finally:
            owner.kill()
            owner.wait()
            owner.stdout.close()


def test_kill_all_ends_busy_and_stopped_helpers(pool: HelperPool) -> None:
    request_status(pool)
    with pool.lend(10.0) as idle, pool.lend(10.0) as busy:
        pool._give_back(idle)
        for helper in (idle, busy):
            os.kill(helper.process.pid, signal.SIGSTOP)
        pool.kill_all()
        assert [helper.process.wait(END_S) for helper in (idle, busy)] == [-signal.SIGKILL] * 2
