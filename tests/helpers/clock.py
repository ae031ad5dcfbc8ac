"""Clock of the tests: seconds of a machine that is as fast as the authors' and has a processor for each runnable process.

    began = clock.awake()
    ...
    assert clock.awake() - began < 10     # a limit for hopsml, not for the machine

Excluded are delays of half a second or more of a separate process that sleeps briefly (the machine was paused), and the
time in which all runnable processes waited for the disk (the kernel's pressure information, ``full``, if available). A
stall of the tests' own interpreter counts: hopsml may be the cause. While more processes are runnable than there are
processors, or on a slower machine, the clock runs slower in proportion.
"""

from __future__ import annotations

import os
import select
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TICK_S = 0.05
LATE_S = 0.5
WAIT_S = 60.0  # of `awake`, for what takes a moment; far above what it needs
END_S = 900.0  # for ends and answers that are waited for without this clock: a test that passes never waits so long
LOAD = Path("/proc/loadavg")
REMEMBERED = 0.05  # of the newest number of runnable processes in the mean, at each tick: a mean over a second
LOOPS, LOOPS_S = 100_000, 0.0015  # a loop of so many turns, and seconds that it takes on the authors' machine
DISK = Path("/proc/pressure/io")
# The file in which seconds are counted: functions that use ``awake`` can travel to a worker, which reads it as well.
_shared = [""]
_COUNTS = (
    "dd"  # as text, so that functions that look at it can travel to a worker: all of it; how much that process was late
)


class Watch:
    """A process that counts seconds of standstill between ``start`` and ``stop``. It ends with this process."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start to count; returns once it counts."""
        descriptor, _shared[0] = tempfile.mkstemp(prefix="tests-clock-")
        try:
            os.pwrite(descriptor, struct.pack(_COUNTS, 0.0, 0.0), 0)
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, str(descriptor), str(DISK)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[descriptor],
                start_new_session=True,  # an interrupt is not for it
            )
        finally:
            os.close(descriptor)
        assert self.process.stdout is not None
        assert self.process.stdout.read(1) == b"x", "the tests' clock cannot be started"

    @property
    def lost_s(self) -> float:
        """Seconds counted so far."""
        return counted()[0]

    @property
    def late_s(self) -> float:
        """Seconds that would be counted without the disk."""
        return counted()[1]

    def stop(self) -> None:
        """End the process, and discard its count."""
        if self.process is not None:
            self.process.communicate()  # which closes its input
            Path(_shared[0]).unlink(missing_ok=True)


WATCH = Watch()


def awake() -> float:
    """Return seconds for differences; ``time.monotonic()`` in a process that has not started the watch."""
    return time.monotonic() - counted()[0]


def wait_until(condition: Callable[[], Any], what: str | Callable[[], str] = "", timeout_s: float = WAIT_S) -> Any:
    """Return the first true value of ``condition``; raise TimeoutError with ``what`` after so many seconds of ``awake``."""
    deadline = awake() + timeout_s
    while not (value := condition()):
        if awake() > deadline:
            raise TimeoutError(f"{what() if callable(what) else what}: not within {timeout_s:g} s")
        time.sleep(0.01)
    return value


def counted() -> tuple[float, float]:
    """Return the seconds counted as lost, and how many of them the process was late; 0 without a watch."""
    try:
        with open(_shared[0], "rb") as file:
            lost_s, late_s = struct.unpack(_COUNTS, file.read(struct.calcsize(_COUNTS)))
    except (OSError, struct.error):
        return 0.0, 0.0
    return lost_s, late_s


def standstill(late_s: float, disk_s: float) -> float:
    """Return the seconds lost between two ticks, of which the second was ``late_s`` late, possibly due to the disk."""
    return max(late_s if late_s >= LATE_S else 0.0, disk_s)


def waited_for_disk(disk: Path | None = None) -> float:
    """Return the seconds of disk waits since boot; 0 if the kernel does not report them."""
    try:
        *_, full = (disk or DISK).read_text().split()
    except (OSError, ValueError):
        return 0.0
    return int(full.removeprefix("total=")) / 1e6


def runnable(load: Path = LOAD) -> int:
    """Return the number of other processes and threads that run or wait for a processor; 0 if it is not reported."""
    try:
        return int(load.read_text().split()[3].partition("/")[0]) - 1
    except (OSError, ValueError, IndexError):
        return 0


def slowness() -> float:
    """Return the processor time of a fixed loop relative to the authors' machine, at least 1; takes about 30 ms."""
    least = float("inf")
    for _ in range(10):
        began = time.thread_time()
        for _ in range(LOOPS):
            pass
        least = min(least, time.thread_time() - began)
    return max(1.0, least / LOOPS_S)


def lost_to_others(passed_s: float, runnable: float, processors: int, slow: float) -> float:
    """Return the seconds of ``passed_s`` lost to other runnable processes on a machine that is ``slow`` times slower."""
    return passed_s * (1 - 1 / (slow * max(1.0, runnable / processors)))


def main(descriptor: int, disk: Path) -> None:
    """Count in this process until the input ends."""
    processors, slow, others = len(os.sched_getaffinity(0)), slowness(), 0.0
    lost, late, last, waited = 0.0, 0.0, time.monotonic(), waited_for_disk(disk)
    os.write(1, b"x")
    while not select.select([0], [], [], TICK_S)[0]:
        now, waited_now = time.monotonic(), waited_for_disk(disk)
        others += REMEMBERED * (runnable() - others)
        late += standstill(now - last - TICK_S, 0.0)
        stood_s = standstill(now - last - TICK_S, waited_now - waited)
        lost += stood_s + lost_to_others(max(0.0, now - last - stood_s), others, processors, slow)
        os.pwrite(descriptor, struct.pack(_COUNTS, lost, late), 0)
        last, waited = now, waited_now


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
