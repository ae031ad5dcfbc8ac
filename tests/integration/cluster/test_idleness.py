"""Tests of the detection of idle workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace

import psutil
import pytest

from hopsml.cluster.agent import usage
from hopsml.cluster.agent.usage import Idleness
from tests.helpers.cluster.workloads import wait_until

pytestmark = pytest.mark.local

SLEEPS = "import time; time.sleep(600)"
WORKS = "while True: sum(range(1000))"
READS = "import time\nwhile True: open('/dev/zero', 'rb').read(1 << 18); time.sleep(0.05)"
CHILD = "import subprocess, sys; subprocess.run([sys.executable, '-c', {!r}])"


@contextmanager
def process(program: str) -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", program], start_new_session=True) as started:
        try:
            yield started.pid
        finally:
            os.killpg(started.pid, signal.SIGKILL)


def work_of(pid: int) -> float:
    """Return the work of a program and its children so far: 1 is 20 ms of a core, or 256 KB."""
    done = 0.0
    for one in (whole := psutil.Process(pid), *whole.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            done += sum(one.cpu_times()[:2]) / 0.02 + one.io_counters().read_chars / (1 << 18)
    return done


@pytest.fixture(autouse=True)
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "IDLE_S", 0.5)
    monkeypatch.setattr(usage, "LIST_S", 0.1)


def test_idleness_of_a_sleeping_process_increases() -> None:
    with process(SLEEPS) as pid:
        idleness = Idleness(pid)
        first = wait_until(idleness.seconds, "idleness")
        assert first >= 0.5 and wait_until(lambda: idleness.seconds() > first + 0.3, "more of it")


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(WORKS, marks=pytest.mark.variant),
        pytest.param(READS, marks=pytest.mark.variant),
        CHILD.format(WORKS),
    ],
    ids=["computes", "reads", "busy child"],
)
def test_process_that_computes_reads_or_has_a_busy_child_is_not_idle(
    monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    """The clock advances with the program's work, as other processes of a busy machine could leave it idle."""
    now = [0.0]
    monkeypatch.setattr(usage, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with process(program) as pid:
        idleness, longest = Idleness(pid), 0.0
        while now[0] < 3.0:
            before = work_of(pid)
            wait_until(lambda before=before: work_of(pid) > before + 1, "some work")
            now[0] += 0.1
            longest = max(longest, idleness.seconds())
        assert longest < 1.5  # what it takes to see the child


def test_ended_process_is_not_tracked() -> None:
    with process(SLEEPS) as pid:
        idleness = Idleness(pid)
    idleness.seconds()
    assert idleness._used == {}
