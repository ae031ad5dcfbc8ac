"""The leak checker finds each kind of thing that a test can leave behind, and nothing that it did not."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import clock, leaks

pytestmark = pytest.mark.fast

ROOT = Path(__file__).resolve().parents[1]

# A process of its own session whose parent is gone: it is found by the mark in its environment alone.
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
    """How things stood, within the mark of this very test."""
    return leaks.Snapshot.take(os.environ[leaks.MARK])


@pytest.fixture
def sleeper() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts children that are gone when the test is over."""
    children: list[subprocess.Popen[bytes]] = []

    def start(**kwargs: object) -> subprocess.Popen[bytes]:
        children.append(subprocess.Popen(["sleep", "600"], **kwargs))  # type: ignore[call-overload]
        return children[-1]

    yield start
    for child in children:
        child.kill()
        child.wait()


def test_nothing_started_nothing_found(before: leaks.Snapshot) -> None:
    assert leaks.leaks_since(before, 0) == []


def test_a_child_is_found_even_without_the_mark(
    before: leaks.Snapshot, sleeper: Callable[..., subprocess.Popen[bytes]]
) -> None:
    child = sleeper(env={})
    assert leaks.leaks_since(before, 0) == [f"process {child.pid}: sleep 600"]


def test_what_is_left_is_killed(before: leaks.Snapshot, sleeper: Callable[..., subprocess.Popen[bytes]]) -> None:
    child = sleeper()
    leaks.leaks_since(before, 0)
    assert child.wait(5) == -signal.SIGKILL


def test_a_process_that_ran_away_is_found_by_its_mark(before: leaks.Snapshot) -> None:
    subprocess.run([sys.executable, "-c", RUN_AWAY], check=True)
    (found,) = leaks.new_processes(before)
    assert found.parent != os.getpid()
    line = leaks.described(found)
    assert leaks.leaks_since(before, 0) == [line]
    assert leaks.leaks_since(before, 5) == [], "it was killed"


def test_a_grandchild_of_an_older_child_is_that_ones(sleeper: Callable[..., subprocess.Popen[bytes]]) -> None:
    with subprocess.Popen(["sh", "-c", "read line; sleep 600"], stdin=subprocess.PIPE, env={}) as older:
        before = leaks.Snapshot.take("another test")
        assert older.stdin is not None
        older.stdin.write(b"go\n")
        older.stdin.flush()
        while not (fresh := [p for p in leaks.all_processes() if p.parent == older.pid]):
            pass
        assert leaks.leaks_since(before, 0) == []
        os.kill(fresh[0].pid, signal.SIGKILL)


def test_a_child_that_is_about_to_end_is_waited_for(before: leaks.Snapshot) -> None:
    child = subprocess.Popen(["sleep", "0.3"])
    assert leaks.leaks_since(before, 10) == []
    child.wait()


def test_a_thread_pool_is_found_once_and_may_grow() -> None:
    nobody = leaks.Snapshot.take("none")
    both = threading.Barrier(3)
    with ThreadPoolExecutor(2, "pool-of-a-test") as pool:
        pool.submit(int).result()
        started = leaks.Snapshot.take("started")
        for _ in range(2):
            pool.submit(both.wait)
        both.wait()
        assert leaks.new_threads(started) == []
        assert "thread 'pool-of-a-test_0' of concurrent.futures.thread" in leaks.new_threads(nobody)


@pytest.mark.parametrize("daemon", [True, False])
def test_a_thread_is_found(before: leaks.Snapshot, daemon: bool) -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait, name="left-behind", daemon=daemon)
    thread.start()
    (line,) = leaks.leaks_since(before, 0)
    done.set()
    thread.join()
    assert line == f"{'daemon ' if daemon else ''}thread 'left-behind' of threading"
    assert leaks.leaks_since(before, 0) == []


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6, socket.AF_UNIX])
def test_a_listening_socket_is_found(before: leaks.Snapshot, family: socket.AddressFamily, tmp_path: Path) -> None:
    address = (
        str(tmp_path / "s") if family == socket.AF_UNIX else ("::1" if family == socket.AF_INET6 else "127.0.0.1", 0)
    )
    with socket.socket(family) as server:
        server.bind(address)
        assert leaks.leaks_since(before, 0) == [], "it does not listen yet"
        server.listen()
        assert len(leaks.leaks_since(before, 0)) == 1
    assert leaks.leaks_since(before, 0) == []


def test_changed_variables_are_found_and_those_of_libraries_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_temporary_folder_is_found(before: leaks.Snapshot) -> None:
    folder = tempfile.mkdtemp()
    assert leaks.leaks_since(before, 0) == [f"in the temporary folder: {folder}"]
    os.rmdir(folder)


def test_what_a_wider_fixture_starts_late_is_not_of_the_test(
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


# ---------------------------------------------------------------------- through pytest

LEAKY = """
import os, subprocess, tempfile, threading
import pytest
from tests import leaks
leaks.GRACE_S = 0.2
pytestmark = pytest.mark.fast

@pytest.fixture(scope="session")
def long_lived():
    child = subprocess.Popen(["sleep", "600"])
    yield child
    child.kill()
    child.wait()

@pytest.fixture
def tidy():
    child = subprocess.Popen(["sleep", "600"])
    yield child
    child.kill()
    child.wait()

def test_clean(long_lived, tidy, monkeypatch, tmp_path):
    monkeypatch.setenv("HOPSML_X", "1")
    (tmp_path / "file").write_text("x")

def test_leaves_a_process():
    subprocess.Popen(["sleep", "601"])

def test_leaves_a_variable():
    os.environ["HOPSML_Y"] = "1"

def test_after_it_is_clean(long_lived):
    assert "HOPSML_Y" not in os.environ

def test_leaves_a_folder():
    tempfile.mkdtemp()
"""


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A pytest of its own over ``folder`` with this project's conftest as a plug-in."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
        "-c",
        os.devnull,
    ]
    command += ["--rootdir", str(folder), f"--basetemp={folder}/tmp", *arguments, str(folder)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_tests_that_leak_fail_and_the_others_pass(tmp_path: Path) -> None:
    (tmp_path / "test_leaky.py").write_text(LEAKY)
    done = run_pytest(tmp_path, "-rA", "-W", "ignore")
    assert done.returncode == 1, done.stdout + done.stderr
    assert set(re.findall(r"^ERROR \S*::(\w+)", done.stdout, re.M)) == {
        "test_leaves_a_process",
        "test_leaves_a_variable",
        "test_leaves_a_folder",
    }
    assert re.search(r"left behind:\n\s+process \d+: sleep 601", done.stdout)
    assert "5 passed" in done.stdout


def test_a_test_without_a_marker_is_refused(tmp_path: Path) -> None:
    (tmp_path / "test_silent.py").write_text("def test_nothing(): pass\n")
    done = run_pytest(tmp_path)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "test_silent.py::test_nothing" in done.stdout + done.stderr


def test_quick_tests_come_first(tmp_path: Path) -> None:
    markers = ("hadoop", "fast", "spark", "tensorflow")
    text = "import pytest\n" + "".join(f"@pytest.mark.{m}\ndef test_{m}(): pass\n" for m in markers)
    (tmp_path / "test_order.py").write_text(text)
    done = run_pytest(tmp_path, "-v", "-W", "ignore")
    assert re.findall(r"::test_(\w+) PASSED", done.stdout) == ["fast", "tensorflow", "spark", "hadoop"]


def test_sigterm_tears_fixtures_down(tmp_path: Path) -> None:
    (tmp_path / "test_long.py").write_text(
        "import os, signal, pytest\n"
        "pytestmark = pytest.mark.fast\n"
        "@pytest.fixture(scope='session')\n"
        "def thing(tmp_path_factory):\n"
        "    yield\n"
        f"    open({str(tmp_path / 'torn-down')!r}, 'w')\n"
        "def test_long(thing):\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    signal.pause()\n"
    )
    done = run_pytest(tmp_path)
    assert done.returncode == 128 + signal.SIGTERM
    assert (tmp_path / "torn-down").exists()


def test_a_session_that_is_killed_leaves_no_temporary_folder(tmp_path: Path) -> None:
    (tmp_path / "test_killed.py").write_text(
        "import os, signal, tempfile, pytest\n"
        "pytestmark = pytest.mark.fast\n"
        "def test_killed():\n"
        f"    open({str(tmp_path / 'folder')!r}, 'w').write(tempfile.gettempdir())\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert run_pytest(tmp_path).returncode == -signal.SIGKILL
    folder = Path((tmp_path / "folder").read_text())
    assert folder.name.startswith("hopsml-tests-")
    deadline = clock.awake() + 10
    while folder.exists():
        assert clock.awake() < deadline, f"{folder} is left"
        time.sleep(0.02)
