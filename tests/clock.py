"""Time as tests count it: without that in which this machine stood still.

    began = clock.awake()
    ...
    assert clock.awake() - began < 10     # a promise of hopsml's, not of the host that a virtual machine shares

Counted as standing still: what a thread that sleeps for a moment comes late, from half a second on (the machine was paused,
or had no processor for anybody), and the time in which all that wanted to run waited for the disk (the kernel's pressure
information, ``full``, where there is any).
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

TICK_S = 0.05
LATE_S = 0.5
DISK = Path("/proc/pressure/io")
_lost_s = [0.0]  # by itself, so that functions that use ``awake`` can travel to a worker: a thread could not


class Watch:
    """A thread that counts seconds of standstill; between ``start`` and ``stop``."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to count."""
        self._over.clear()
        self._thread = threading.Thread(target=self._count, name="tests.clock", daemon=True)
        self._thread.start()

    @property
    def lost_s(self) -> float:
        """Counted so far."""
        return _lost_s[0]

    def stop(self) -> None:
        """End the thread; what was counted stays."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _count(self) -> None:
        last, disk = time.monotonic(), waited_for_disk()
        while not self._over.wait(TICK_S):
            now, disk_now = time.monotonic(), waited_for_disk()
            _lost_s[0] += standstill(now - last - TICK_S, disk_now - disk)
            last, disk = now, disk_now


WATCH = Watch()


def awake() -> float:
    """Seconds, of use only as differences. In a process where nobody has started the watch: ``time.monotonic()``."""
    return time.monotonic() - _lost_s[0]


def standstill(late_s: float, disk_s: float) -> float:
    """Seconds lost between two ticks, of which the second was ``late_s`` late; the disk may be why it was."""
    return max(late_s if late_s >= LATE_S else 0.0, disk_s)


def waited_for_disk() -> float:
    """Seconds since the machine began; 0 where the kernel does not say."""
    try:
        *_, full = DISK.read_text().split()
    except (OSError, ValueError):
        return 0.0
    return int(full.removeprefix("total=")) / 1e6
