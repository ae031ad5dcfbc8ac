"""Tests of the tests' clock, which excludes standstills of the machine, and slows down with it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path

import cloudpickle
import pytest

from tests.helpers import clock
from tests.helpers.clock import END_S

pytestmark = pytest.mark.local

PROGRAM = """
import sys, time
from pathlib import Path
from tests.helpers import clock
told, fresh = Path(sys.argv[1]), Path(sys.argv[1] + ".fresh")
clock.DISK = told
clock.WATCH.start()
counted = clock.awake()
began, total = time.monotonic(), 0
while clock.WATCH.lost_s < 5 and time.monotonic() - began < 60:
    total += 1_000_000
    fresh.write_text(f"full avg10=0.00 avg60=0.00 avg300=0.00 total={total}")
    fresh.rename(told)
    time.sleep(clock.TICK_S)
passed = time.monotonic() - began
print(passed, clock.awake() - counted)
clock.WATCH.stop()
"""


def test_disk_stalls_do_not_count_while_the_watch_runs(tmp_path: Path) -> None:
    """In a subprocess, so that this process's clock is unaffected."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "io")],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
        timeout=END_S,
    )
    assert done.returncode == 0, done.stderr
    passed, counted = map(float, done.stdout.split())
    assert counted < passed - 4.9


HELD = """
import os, signal, sys, time
from tests.helpers import clock
clock.WATCH.start()
pid = clock.WATCH.process.pid
os.kill(pid, signal.SIGSTOP)
began = time.monotonic()
while time.monotonic() - began < 1.5:
    time.sleep(0.01)
os.kill(pid, signal.SIGCONT)
while clock.WATCH.lost_s < 1 and time.monotonic() - began < 60:
    time.sleep(0.01)
print(clock.WATCH.lost_s)
clock.WATCH.stop()
print(os.path.exists(clock._shared[0]))
"""


def test_delay_of_the_watch_process_counts_as_a_standstill() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HELD], capture_output=True, text=True, cwd=Path(__file__).parents[3], timeout=END_S
    )
    assert done.returncode == 0, done.stderr
    lost, left = done.stdout.split()
    assert float(lost) >= 1.4
    assert left == "False"


def test_clock_functions_can_be_pickled_by_value() -> None:
    """As capture ships them, which cannot import tests: by value."""
    cloudpickle.register_pickle_by_value(clock)
    try:
        awake = cloudpickle.loads(cloudpickle.dumps(clock.awake))
    finally:
        cloudpickle.unregister_pickle_by_value(clock)
    assert awake is not clock.awake
    assert awake() == pytest.approx(clock.awake(), abs=5)


def test_stall_of_this_interpreter_counts_as_time() -> None:
    """Two seconds with the GIL held. The machine may be frozen by chance, but not three times in a row."""
    forgiven: list[float] = []
    while 0.0 not in forgiven and len(forgiven) < 3:
        late, lost, start_s, real = clock.WATCH.late_s, clock.WATCH.lost_s, clock.awake(), time.monotonic()
        ctypes.PyDLL(None).sleep(2)
        passed, took = clock.awake() - start_s, time.monotonic() - real
        forgiven.append(clock.WATCH.late_s - late)
        assert took >= 2
        assert passed == pytest.approx(took - (clock.WATCH.lost_s - lost), abs=0.1)  # what the disk took is no stall
    assert 0.0 in forgiven, forgiven


@pytest.mark.parametrize(
    ("late_s", "disk_s", "lost_s"),
    [(0.0, 0.0, 0.0), (0.4, 0.0, 0.0), (2.0, 0.0, 2.0), (0.1, 1.5, 1.5), (2.0, 1.5, 2.0)],
)
def test_standstill_is_the_larger_of_delay_and_disk_stall(late_s: float, disk_s: float, lost_s: float) -> None:
    assert clock.standstill(late_s, disk_s) == lost_s


def test_disk_stall_time_is_read_from_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "io"
    monkeypatch.setattr(clock, "DISK", path)
    assert clock.waited_for_disk() == 0.0
    path.write_text(
        "some avg10=1.24 avg60=1.13 avg300=0.74 total=662016895\nfull avg10=1.16 avg60=0.99 avg300=0.50 total=2500000\n"
    )
    assert clock.waited_for_disk() == 2.5


BUSY = """
import subprocess, sys, time
from tests.helpers import clock
clock.WATCH.start()
busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(int(sys.argv[1]))]
try:
    began, counted = time.monotonic(), clock.awake()
    while clock.awake() - counted < 2:
        time.sleep(clock.TICK_S)
    print(time.monotonic() - began)
finally:
    for process in busy:
        process.kill()
        process.wait()
clock.WATCH.stop()
"""


@pytest.mark.variant
def test_time_of_this_clock_slows_down_with_other_busy_processes() -> None:
    """The mean of runnable processes takes a second to rise, so not quite three times as long."""
    busy = str(3 * len(os.sched_getaffinity(0)))
    done = subprocess.run(
        [sys.executable, "-c", BUSY, busy], capture_output=True, text=True, cwd=Path(__file__).parents[3], timeout=END_S
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) > 3.2


@pytest.mark.parametrize(
    ("runnable", "slow", "lost_s"), [(0, 1.0, 0.0), (2, 1.0, 0.0), (8, 1.0, 9.0), (1, 3.0, 8.0), (4, 3.0, 10.0)]
)
def test_lost_time_follows_from_runnable_processes_and_slowness(runnable: int, slow: float, lost_s: float) -> None:
    assert clock.lost_to_others(12.0, runnable, 2, slow) == pytest.approx(lost_s)


def test_runnable_processes_are_read_from_the_kernel(tmp_path: Path) -> None:
    path = tmp_path / "loadavg"
    assert clock.runnable(path) == 0
    path.write_text("9.98 8.11 7.02 7/1482 30911\n")
    assert clock.runnable(path) == 6
