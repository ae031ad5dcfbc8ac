"""Tests of the supervisor of local drivers against other users, damaged state files, and kills at any moment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopsml.core import file_locks, processes
from hopsml.core.states import Lifecycle
from hopsml.engines import local_driver
from hopsml.engines.local_driver import ENDED, LOCK, OUTPUT, ROOM, RUNNING, DriverOrder
from tests.helpers.clock import wait_until

pytestmark = pytest.mark.fast
SLEEPS = ["sh", "-c", "echo begun; exec sleep 600"]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for a driver, which is killed after the test."""
    made = tmp_path / "job"
    made.mkdir()
    yield made
    local_driver.signal_driver(made, signal.SIGKILL)
    wait_until(lambda: (status := local_driver.status_of(made)) is None or status.state.is_final)


def state_of(folder: Path) -> Lifecycle | None:
    status = local_driver.status_of(folder)
    return status.state if status is not None else None


def begun(folder: Path) -> bool:
    return (folder / OUTPUT).exists() and b"begun" in (folder / OUTPUT).read_bytes()


def test_driver_is_not_started_in_a_folder_locked_by_another_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_driver, "LOCK_TIMEOUT_S", 0.05)
    with file_locks.locked(folder / LOCK), pytest.raises(OSError, match="is another driver's"):
        local_driver.start(folder, DriverOrder(["true"], os.environ))
    assert not (folder / RUNNING).exists()


def test_driver_starts_while_another_process_reads_its_status(folder: Path) -> None:
    reader = os.open(folder / LOCK, os.O_RDONLY | os.O_CREAT)  # as ``is_locked`` for a moment
    assert file_locks.try_lock(reader, shared=True)
    starting = threading.Thread(target=local_driver.start, args=(folder, DriverOrder(SLEEPS, os.environ)))
    starting.start()
    starting.join(0.05)
    os.close(reader)
    starting.join()
    wait_until(lambda: begun(folder))
    assert file_locks.is_locked(folder / LOCK), "its supervisor holds the lock"


def test_second_start_in_a_folder_is_refused_and_the_first_driver_continues(folder: Path) -> None:
    local_driver.start(folder, DriverOrder(SLEEPS, os.environ))
    with pytest.raises(OSError, match="is another driver's"):
        local_driver.start(folder, DriverOrder(["true"], os.environ))
    wait_until(lambda: begun(folder))
    assert state_of(folder) is Lifecycle.RUNNING


KILLED_WHEN_ITS_DRIVER_RUNS = """
import os, signal, subprocess, sys
from pathlib import Path
from hopsml.engines.local_driver import DriverOrder, main
start = subprocess.Popen.__init__
def start_and_die(self, *line, **named):
    start(self, *line, **named)
    os.kill(os.getpid(), signal.SIGKILL)
subprocess.Popen.__init__ = start_and_die
main(Path(sys.argv[1]), DriverOrder(sys.argv[2:], os.environ))
"""


def test_driver_whose_supervisor_is_killed_is_found_and_can_be_killed(folder: Path) -> None:
    code = [sys.executable, "-c", KILLED_WHEN_ITS_DRIVER_RUNS, str(folder), *SLEEPS]
    subprocess.run(code, check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    wait_until(lambda: begun(folder))
    supervisor = json.loads((folder / RUNNING).read_text())["pid"]
    wait_until(lambda: processes.has_ended(supervisor))
    assert state_of(folder) is Lifecycle.RUNNING
    local_driver.signal_driver(folder, signal.SIGKILL)
    wait_until(lambda: state_of(folder) is Lifecycle.LOST)


def test_stopped_supervisor_ends_its_driver_when_requested(folder: Path) -> None:
    local_driver.start(folder, DriverOrder(SLEEPS, os.environ, is_bound=True))
    wait_until(lambda: begun(folder))
    supervisor = json.loads((folder / RUNNING).read_text())["pid"]
    os.kill(supervisor, signal.SIGSTOP)
    wait_until(lambda: processes.is_stopped(supervisor))
    assert local_driver.request_end(folder)
    wait_until(lambda: state_of(folder) is Lifecycle.STOPPED)


def test_supervisor_imports_no_module_from_the_working_directory(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evil = tmp_path / "writable for all"
    (evil / "hopsml").mkdir(parents=True)
    for name in ("json.py", "hopsml/__init__.py"):
        (evil / name).write_text(f"open({str(tmp_path / 'taken')!r}, 'w'); raise SystemExit('taken over')")
    monkeypatch.chdir(evil)
    local_driver.start(folder, DriverOrder(["pwd"], os.environ))
    wait_until(lambda: state_of(folder) is Lifecycle.FINISHED)
    assert not (tmp_path / "taken").exists()
    assert (folder / OUTPUT).read_text() == f"{evil}\n", "the driver begins in the caller's folder"


OWN = {"pid": os.getpid(), "ticks": processes.start_time_of(os.getpid()), "host": "h", "pid_namespace": ""}
OWN["pid_namespace"] = processes.pid_namespace()


@pytest.mark.parametrize(
    "content",
    [
        "{}",
        '{"pid"',
        "[" * 100_000,
        "\0" * ROOM,
        '{"pid": ' + "9" * 5000 + "}",
        json.dumps(OWN | {"pid": -1, "ticks": None}),
        json.dumps(OWN | {"pid": 1, "ticks": processes.start_time_of(1)}),
        json.dumps(OWN | {"pid": 0, "driver": 0, "driver_ticks": 0}),
        json.dumps(OWN | {"driver": -1, "driver_ticks": None}),
        json.dumps(OWN | {"driver": "x", "driver_ticks": None}),
        json.dumps(OWN | {"driver": [1], "driver_ticks": 2}),
        json.dumps(OWN | {"pid": True}),
    ],
)
def test_damaged_state_file_leads_to_no_signal(tmp_path: Path, content: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    monkeypatch.setattr(os, "killpg", lambda pid, number: sent.append((pid, number)))
    (tmp_path / RUNNING).write_text(content)
    assert state_of(tmp_path) is None
    assert not local_driver.request_end(tmp_path)
    local_driver.signal_driver(tmp_path, signal.SIGKILL)
    assert not sent


def test_process_that_reuses_the_pid_of_an_ended_one_receives_no_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append(pid))
    monkeypatch.setattr(os, "killpg", lambda pid, number: sent.append(pid))
    me = processes.start_time_of(os.getpid())
    assert me is not None
    of_earlier = {"pid": os.getpid(), "ticks": me - 1, "driver": os.getpid(), "driver_ticks": me - 1}
    of_earlier_boot = {**of_earlier, "ticks": me, "driver_ticks": me, "pid_namespace": "another boot/pid:[1]"}
    for facts in (of_earlier, of_earlier_boot):
        (tmp_path / RUNNING).write_text(json.dumps(OWN | facts))
        local_driver.signal_driver(tmp_path, signal.SIGKILL)
        assert state_of(tmp_path) is Lifecycle.LOST and not sent


@pytest.mark.parametrize("content", ['{"status": "0", "problem": ""}', '{"status": 0, "problem": 1}', "[" * 100_000])
def test_damaged_exit_status_does_not_count_as_success(tmp_path: Path, content: str) -> None:
    (tmp_path / RUNNING).write_text(json.dumps(OWN | {"ticks": 1}))
    (tmp_path / ENDED).write_text(content)
    assert state_of(tmp_path) is Lifecycle.LOST


def test_longest_problem_fits_into_the_allocated_space(folder: Path) -> None:
    local_driver.start(folder, DriverOrder(["/nowhere/" + "\N{SNAKE}" * 1000], os.environ))
    wait_until(lambda: state_of(folder) is Lifecycle.FAILED)
    assert (folder / ENDED).stat().st_size == ROOM
