"""The tests' clock: a machine that stands still gives them time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import clock

pytestmark = pytest.mark.fast

PROGRAM = """
import sys, time
from tests import clock
clock.WATCH.start()
began, counted = time.monotonic(), clock.awake()
print("ready", flush=True)
sys.stdin.readline()
time.sleep(3 * clock.TICK_S)
print(time.monotonic() - began, clock.awake() - counted)
clock.WATCH.stop()
"""


def test_time_that_a_process_is_frozen_does_not_count() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(1.5)  # the harm itself
        os.kill(process.pid, signal.SIGCONT)
        process.stdin.write("\n")
        process.stdin.flush()
        passed, counted = map(float, process.stdout.readline().split())
    assert passed >= 1.5
    assert counted <= passed - 1.0


@pytest.mark.parametrize(
    ("late_s", "disk_s", "lost_s"),
    [(0.0, 0.0, 0.0), (0.4, 0.0, 0.0), (2.0, 0.0, 2.0), (0.1, 1.5, 1.5), (2.0, 1.5, 2.0)],
)
def test_what_counts_as_standstill(late_s: float, disk_s: float, lost_s: float) -> None:
    assert clock.standstill(late_s, disk_s) == lost_s


def test_the_disk_is_asked_of_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = tmp_path / "io"
    monkeypatch.setattr(clock, "DISK", told)
    assert clock.waited_for_disk() == 0.0
    told.write_text(
        "some avg10=1.24 avg60=1.13 avg300=0.74 total=662016895\nfull avg10=1.16 avg60=0.99 avg300=0.50 total=2500000\n"
    )
    assert clock.waited_for_disk() == 2.5
