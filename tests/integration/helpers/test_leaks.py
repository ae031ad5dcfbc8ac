"""Tests that the leak checker finds each kind of leak, and reports nothing else."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import leaks
from tests.helpers.clock import END_S

pytestmark = pytest.mark.local

ROOT = Path(__file__).resolve().parents[3]

# A process in a separate session whose parent has ended: only the mark in its environment identifies it.
RUN_AWAY = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.close(1)
        time.sleep(600)
    os._exit(0)
os.wait()
"""


@pytest.fixture
def before() -> leaks.Snapshot:
    """Return a snapshot of the state before the test, with the mark of this test."""
    return leaks.Snapshot.take(os.environ[leaks.MARK])


@pytest.fixture
def sleeper() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start children that are ended after the test."""
    children: list[subprocess.Popen[bytes]] = []

    def start(**kwargs: object) -> subprocess.Popen[bytes]:
        children.append(subprocess.Popen(["sleep", "600"], **kwargs))  # type: ignore[call-overload]
        return children[-1]

    yield start
    for child in children:
        child.kill()
        child.wait()


def test_unchanged_process_has_no_leaks(before: leaks.Snapshot) -> None:
    assert leaks.leaks_since(before, 0) == []


def test_child_is_found_without_the_mark(
    before: leaks.Snapshot, sleeper: Callable[..., subprocess.Popen[bytes]]
) -> None:
    child = sleeper(env={})
    assert leaks.leaks_since(before, 0) == [f"process {child.pid}: sleep 600"]


def test_leaked_child_is_killed(before: leaks.Snapshot, sleeper: Callable[..., subprocess.Popen[bytes]]) -> None:
    child = sleeper()
    leaks.leaks_since(before, 0)
    assert child.wait(END_S) == -signal.SIGKILL


def test_detached_process_is_found_by_its_mark(before: leaks.Snapshot) -> None:
    subprocess.run([sys.executable, "-c", RUN_AWAY], check=True)
    (found,) = leaks.new_processes(before)
    assert found.parent != os.getpid()
    line = leaks.described(found)
    assert leaks.leaks_since(before, 0) == [line]
    assert leaks.leaks_since(before, 5) == [], "it was killed"


def test_grandchild_of_an_older_child_is_not_a_leak(sleeper: Callable[..., subprocess.Popen[bytes]]) -> None:
    with subprocess.Popen(["sh", "-c", "read line; sleep 600"], stdin=subprocess.PIPE, env={}) as older:
        before = leaks.Snapshot.take("another test")
        assert older.stdin is not None
        older.stdin.write(b"go\n")
        older.stdin.flush()
        while not (fresh := [p for p in leaks.all_processes() if p.parent == older.pid]):
            pass
        assert leaks.leaks_since(before, 0) == []
        os.kill(fresh[0].pid, signal.SIGKILL)


def test_ending_child_is_waited_for(before: leaks.Snapshot) -> None:
    child = subprocess.Popen(["sleep", "0.3"])
    assert leaks.leaks_since(before, 10) == []
    child.wait()


def test_thread_pool_is_found_once_and_may_grow() -> None:
    empty = leaks.Snapshot.take("none")
    both = threading.Barrier(3)
    with ThreadPoolExecutor(2, "pool-of-a-test") as pool:
        pool.submit(int).result()
        started = leaks.Snapshot.take("started")
        for _ in range(2):
            pool.submit(both.wait)
        both.wait()
        assert leaks.new_threads(started) == []
        assert "thread 'pool-of-a-test_0' of concurrent.futures.thread" in leaks.new_threads(empty)


@pytest.mark.parametrize("daemon", [True, False])
def test_leaked_thread_is_found(before: leaks.Snapshot, daemon: bool) -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait, name="left-behind", daemon=daemon)
    thread.start()
    (line,) = leaks.leaks_since(before, 0)
    done.set()
    thread.join()
    assert line == f"{'daemon ' if daemon else ''}thread 'left-behind' of threading"
    assert leaks.leaks_since(before, 0) == []


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6, socket.AF_UNIX])
def test_listening_socket_is_found(before: leaks.Snapshot, family: socket.AddressFamily, tmp_path: Path) -> None:
    address = (
        str(tmp_path / "s") if family == socket.AF_UNIX else ("::1" if family == socket.AF_INET6 else "127.0.0.1", 0)
    )
    with socket.socket(family) as server:
        server.bind(address)
        assert leaks.leaks_since(before, 0) == [], "it does not listen yet"
        server.listen()
        assert len(leaks.leaks_since(before, 0)) == 1
    assert leaks.leaks_since(before, 0) == []


def test_changed_variables_are_found_except_those_of_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPSML_CHANGED", "1")
    monkeypatch.setenv("HOPSML_REMOVED", "1")
    before = leaks.Snapshot.take(os.environ[leaks.MARK])
    monkeypatch.setenv("HOPSML_CHANGED", "2")
    monkeypatch.delenv("HOPSML_REMOVED")
    monkeypatch.setenv("HOPSML_NEW", "1")
    monkeypatch.setenv("TF_CPP_VMODULE", "x=1")
    assert leaks.leaks_since(before, 0) == [
        "environment variable HOPSML_CHANGED: '1' became '2'",
        "environment variable HOPSML_NEW: None became '1'",
        "environment variable HOPSML_REMOVED: '1' became None",
    ]


def test_temporary_folder_is_found(before: leaks.Snapshot) -> None:
    folder = tempfile.mkdtemp()
    assert leaks.leaks_since(before, 0) == [f"in the temporary folder: {folder}"]
    os.rmdir(folder)


def test_probe_file_of_tempfile_is_not_a_leak(before: leaks.Snapshot) -> None:
    probe = Path(tempfile.gettempdir()) / "lr1pjie4"
    probe.write_bytes(b"blat")
    assert leaks.leaks_since(before, 0) == []
    probe.write_bytes(b"a file of somebody's")
    assert leaks.leaks_since(before, 0) == [f"in the temporary folder: {probe}"]
    probe.unlink()


def test_resources_of_a_wider_fixture_are_not_leaks_of_the_test(
    before: leaks.Snapshot, sleeper: Callable[..., subprocess.Popen[bytes]]
) -> None:
    done = threading.Event()
    with leaks.not_of_this_test():
        assert leaks.MARK not in os.environ
        sleeper()
        thread = threading.Thread(target=done.wait)
        thread.start()
        folder = tempfile.mkdtemp()
        server = socket.create_server(("127.0.0.1", 0))
    with server:
        assert leaks.MARK in os.environ
        assert leaks.leaks_since(before, 0) == []
    os.rmdir(folder)
    done.set()
    thread.join()


@given(st.dictionaries(st.text(), st.text()), st.dictionaries(st.text(), st.text()))
def test_changed_names_are_exactly_the_differences(before: dict[str, str], after: dict[str, str]) -> None:
    names = leaks.changed_names(before, after)
    repaired = {**after, **{name: before[name] for name in names if name in before}}
    for name in names:
        assert before.get(name) != after.get(name)
        if name not in before:
            del repaired[name]
    assert {k: v for k, v in repaired.items() if not k.startswith(leaks.LIBRARY_VARIABLES)} == {
        k: v for k, v in before.items() if not k.startswith(leaks.LIBRARY_VARIABLES)
    }
