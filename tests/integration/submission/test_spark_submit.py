"""Tests of spark-submit's process group, simulated by shells: its end, its output, and its parent's end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hopsml.submission.spark_submit import Interrupts, SparkSubmit, _is_alive, _processes
from tests.helpers import clock
from tests.helpers.clock import END_S

pytestmark = pytest.mark.local

ROOT = Path(__file__).parents[3]
STUBBORN = "trap '' TERM; sleep 100 & echo $$ > $FILE; wait; wait; sleep 100"


def test_exit_status_and_output_tail_are_returned(tmp_path: Path) -> None:
    with SparkSubmit(["sh", "-c", "echo out; echo err >&2; exit 3"], os.environ, quiet=True) as job:
        job._process.wait(END_S)
        assert (job.poll(), job.output_tail()) == (3, "out\nerr")


def test_process_group_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    with SparkSubmit(["sh", "-c", STUBBORN], {**os.environ, "FILE": str(file)}, quiet=True) as job:
        pid = wait_for(file)
        job.end(grace_s=0.2)
        assert job.poll() == -signal.SIGKILL and not job.has_processes()
    assert not _is_alive(pid)


KILLED_LATER = "from hopsml.submission.spark_submit import SparkSubmit"
KILLED_AS_SOON_AS_IT_RUNS = """
import signal, subprocess
start = subprocess.Popen.__init__
def start_and_die(self, line, **named):
    start(self, line, **named)
    if "sleep" in str(line):
        os.kill(os.getpid(), signal.SIGKILL)
subprocess.Popen.__init__ = start_and_die
from hopsml.submission.spark_submit import SparkSubmit
"""


@pytest.mark.parametrize("beginning", [KILLED_LATER, KILLED_AS_SOON_AS_IT_RUNS])
def test_killed_starter_takes_its_process_group_along_at_any_moment(tmp_path: Path, beginning: str) -> None:
    file = tmp_path / "pid"
    code = f"""
import os, time
{beginning}
with SparkSubmit(["sh", "-c", "echo $$ > $FILE; exec sleep 100"], os.environ, quiet=True): time.sleep(100)
"""
    environment = {**os.environ, "FILE": str(file), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", code], env=environment) as starter:
        if beginning == KILLED_LATER:
            wait_for(file)
            starter.kill()
        assert starter.wait(END_S) == -signal.SIGKILL
    deadline = clock.awake() + 10
    while _runs_of(file):
        assert clock.awake() < deadline
        time.sleep(0.01)


def _runs_of(file: Path) -> list[int]:
    """Return processes started with the file in their environment."""
    return [pid for pid, _ in _processes() if f"FILE={file}".encode() in _environment(pid)]


def _environment(pid: int) -> list[bytes]:
    try:
        return Path("/proc", str(pid), "environ").read_bytes().split(b"\0")
    except OSError:  # it has ended
        return []


def test_missing_command_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        SparkSubmit([str(tmp_path / "no-such-program")], os.environ, quiet=True)


def wait_for(file: Path, timeout_s: float = 20) -> int:
    deadline = clock.awake() + timeout_s
    while not (file.exists() and file.read_text().strip()):
        assert clock.awake() < deadline
        time.sleep(0.01)
    return int(file.read_text())


def test_signals_are_queued_until_they_are_read() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Interrupts() as interrupts:
        assert interrupts.wait(0) is None
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        assert {interrupts.wait(END_S), interrupts.wait(END_S)} == {signal.SIGTERM, signal.SIGINT}
        read, write = os.pipe()
        os.write(write, b"x")
        assert interrupts.wait(60, read) is None
        os.close(read)
        os.close(write)
    assert signal.getsignal(signal.SIGTERM) == before
