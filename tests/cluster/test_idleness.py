"""Who does nothing, and who only seems to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hopsml.cluster import idleness
from hopsml.cluster.idleness import Idleness
from tests.cluster.workloads import wait_until

pytestmark = pytest.mark.fast

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


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idleness, "LEAST_S", 0.5)
    monkeypatch.setattr(idleness, "LIST_S", 0.1)


def test_one_that_sleeps_does_nothing_since_it_fell_asleep() -> None:
    with process(SLEEPS) as pid:
        looked = Idleness(pid)
        first = wait_until(looked.seconds, "idleness")
        assert first >= 0.5 and wait_until(lambda: looked.seconds() > first + 0.3, "more of it")


@pytest.mark.parametrize(
    "program", [WORKS, READS, CHILD.format(WORKS)], ids=["works", "reads", "has a child that works"]
)
def test_one_that_computes_moves_bytes_or_lets_others_work_does_something(program: str) -> None:
    with process(program) as pid:
        looked = Idleness(pid)
        until, longest = time.monotonic() + 2, 0.0
        while time.monotonic() < until:
            longest = max(longest, looked.seconds())
            time.sleep(0.25)
        assert longest < 1.5  # what it takes to see the child


def test_one_that_is_gone_is_nobody_to_be_told_of() -> None:
    with process(SLEEPS) as pid:
        looked = Idleness(pid)
    looked.seconds()
    assert looked._used == {}
