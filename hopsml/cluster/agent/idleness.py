"""For how long a worker has done nothing: no processor used, nothing read or written; looked at with each heartbeat."""

from __future__ import annotations

import time

from hopsml.cluster.agent import usage
from hopsml.cluster.shared import processes

LEAST_S = 5.0  # that is worth a word
LIST_S = 5.0  # how often the children of a quiet worker are listed, which costs a look at all processes
_CORE_SHARE = 0.05  # of one core: what threads that only wait use, and far less than any work
_BYTES_A_SECOND = 64 << 10


class Idleness:
    """Of one worker with all that it has started."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._looked = self._since = time.monotonic()
        self._used: dict[int, tuple[float, int]] = {}
        self._below: list[int] = []
        self._listed = 0.0

    def seconds(self) -> float:
        """How long it has done nothing; 0.0 below ``LEAST_S``."""
        now = time.monotonic()
        self._list(now)
        before, self._used = self._used, self._look()
        elapsed, self._looked = now - self._looked, now
        core_s = sum(one[0] - before.get(pid, one)[0] for pid, one in self._used.items())
        moved = sum(one[1] - before.get(pid, one)[1] for pid, one in self._used.items())
        if core_s > _CORE_SHARE * elapsed or moved > _BYTES_A_SECOND * elapsed:
            self._since = now
        idle_s = now - self._since
        return idle_s if idle_s >= LEAST_S else 0.0

    def _list(self, now: float) -> None:
        """Whom the worker has started: only where it is quiet itself is that of interest."""
        if now - self._since < LEAST_S:
            self._below = []
        elif now - self._listed >= LIST_S:
            self._below, self._listed = processes.descendants_of(self._pid), now

    def _look(self) -> dict[int, tuple[float, int]]:
        """Processor seconds and bytes moved so far."""
        members = (self._pid, *self._below)
        return {pid: (core_s, _moved(pid)) for pid in members if (core_s := usage.core_seconds(pid)) is not None}


def _moved(pid: int) -> int:
    """Bytes that the process has read and written by now; 0 where the system does not say."""
    try:
        with open(f"/proc/{pid}/io", "rb") as file:
            return sum(int(line.split()[1]) for line in file if line.startswith((b"rchar", b"wchar")))
    except OSError:
        return 0
