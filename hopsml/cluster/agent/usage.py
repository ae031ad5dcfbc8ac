"""What one worker uses of its machine: processor, memory, disk, network, its GPUs; and for how long it has done nothing.

Names are those that MLflow uses for its own system metrics. Only the slot's GPUs are looked at, not all of the host.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

from hopsml.cluster.agent import cgroup
from hopsml.cluster.shared import processes

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MEGABYTE = 1_000_000
IDLE_S = 5.0  # that are worth a word
LIST_S = 5.0  # how often the children of a quiet worker are listed, which costs a look at all processes
_CORE_SHARE = 0.05  # of one core: what threads that only wait use, and far less than any work
_BYTES_A_SECOND = 64 << 10


class UsageSampler:
    """Samples a worker with all its descendants; not for several threads at once.

    What is moved counts from the first sample on. The network is that of the worker's network namespace: of the host,
    where the worker is in no container of its own.
    """

    def __init__(self, pid: int, gpu_indices: tuple[int, ...] = ()) -> None:
        self._pid, self._gpu_indices = pid, gpu_indices
        self._ticks: dict[int, int] = {}
        self._at_s = time.monotonic()
        self._disk = _Growing()
        self._network = _Growing()
        self._memory = cgroup.memory_of(pid)
        self._nvml: Any = None
        self._handles: dict[int, Any] = {}

    def sample(self) -> dict[str, float]:
        """Percent of one core since the last sample (from the second one on), megabytes; empty once the worker is gone."""
        members = [self._pid, *processes.descendants_of(self._pid)]
        used = {pid: facts for pid in members if (facts := _used(pid)) is not None}
        if self._pid not in used:
            return {}
        now = time.monotonic()
        values = {"memory_usage_megabytes": sum(rss for _, rss in used.values()) / _MEGABYTE}
        if self._ticks:
            ticks = sum(ticks - self._ticks.get(pid, 0) for pid, (ticks, _) in used.items())
            values["cpu_utilization_percentage"] = 100.0 * ticks / _TICKS_A_SECOND / max(now - self._at_s, 1e-3)
        self._ticks, self._at_s = {pid: ticks for pid, (ticks, _) in used.items()}, now
        values.update(self._container())
        read, written = self._disk.update({pid: _on_disk(pid) for pid in used})
        received, sent = self._network.update(_network(self._pid))
        values |= {"disk_read_megabytes": read, "disk_write_megabytes": written}
        values |= {"network_receive_megabytes": received, "network_transmit_megabytes": sent}
        for place, index in enumerate(self._gpu_indices):
            values.update(self._gpu(place, index))
        return values

    def _container(self) -> dict[str, float]:
        """Of the memory that its container may use, all that runs in it."""
        usage = self._memory.usage_bytes() if self._memory is not None else None
        if self._memory is None or usage is None:
            return {}
        return {"container_memory_usage_percentage": 100.0 * usage / self._memory.limit_bytes}

    def _gpu(self, place: int, index: int) -> dict[str, float]:
        """Nothing where NVML is missing or refuses: a figure less, no trouble.

        Handles are kept, and the processes of a GPU are never listed: that takes milliseconds under a lock of the driver.
        """
        with contextlib.suppress(Exception):
            import pynvml

            if self._nvml is None:
                pynvml.nvmlInit()
                self._nvml = pynvml
            if index not in self._handles:
                self._handles[index] = pynvml.nvmlDeviceGetHandleByIndex(index)
            handle = self._handles[index]
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            return {
                f"gpu_{place}_utilization_percentage": float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu),
                f"gpu_{place}_memory_usage_megabytes": memory.used / _MEGABYTE,
                f"gpu_{place}_memory_usage_percentage": 100.0 * memory.used / memory.total,
                f"gpu_{place}_power_usage_watts": pynvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            }
        return {}

    def close(self) -> None:
        """Shut NVML down, where it was used."""
        if self._nvml is not None:
            with contextlib.suppress(Exception):
                self._nvml.nvmlShutdown()
            self._nvml, self._handles = None, {}


class _Growing:
    """Two counters of each of several sources, which come and go: how much they have grown in all, in megabytes.

    What a source had counted passes on to another when it goes, as what a process has moved does to the one that waits for
    it: it is not counted twice.
    """

    def __init__(self) -> None:
        self._begun: dict[Any, tuple[int, int]] | None = None  # source -> where it began to count
        self._grown = [0, 0]

    def update(self, now: dict[Any, tuple[int, int]]) -> tuple[float, float]:
        """``now``: source -> its counters, bytes. One that is new began at 0, but for those of the first look."""
        if self._begun is None:
            self._begun = dict(now)
        begun = self._begun
        for place in (0, 1):
            grown = sum(counters[place] - begun.get(source, (0, 0))[place] for source, counters in now.items())
            self._grown[place] = max(self._grown[place], grown)
        return self._grown[0] / _MEGABYTE, self._grown[1] / _MEGABYTE


class Idleness:
    """For how long a worker with all that it has started has done nothing: no processor used, nothing read or written."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._looked = self._since = time.monotonic()
        self._used: dict[int, tuple[float, int]] = {}
        self._below: list[int] = []
        self._listed = 0.0

    def seconds(self) -> float:
        """For how many seconds it has done nothing, looked at with each heartbeat; 0.0 below ``IDLE_S``."""
        now = time.monotonic()
        self._list(now)
        before, self._used = self._used, self._look()
        elapsed, self._looked = now - self._looked, now
        core_s = sum(one[0] - before.get(pid, one)[0] for pid, one in self._used.items())
        moved = sum(one[1] - before.get(pid, one)[1] for pid, one in self._used.items())
        if core_s > _CORE_SHARE * elapsed or moved > _BYTES_A_SECOND * elapsed:
            self._since = now
        idle_s = now - self._since
        return idle_s if idle_s >= IDLE_S else 0.0

    def _list(self, now: float) -> None:
        """Whom the worker has started: only where it is quiet itself is that of interest."""
        if now - self._since < IDLE_S:
            self._below = []
        elif now - self._listed >= LIST_S:
            self._below, self._listed = processes.descendants_of(self._pid), now

    def _look(self) -> dict[int, tuple[float, int]]:
        """Processor seconds and bytes moved so far."""
        members = (self._pid, *self._below)
        return {pid: (core_s, _moved(pid)) for pid in members if (core_s := _core_seconds(pid)) is not None}


def _moved(pid: int) -> int:
    """Bytes that the process has read and written by now; 0 where the system does not say."""
    try:
        with open(f"/proc/{pid}/io", "rb") as file:
            return sum(int(line.split()[1]) for line in file if line.startswith((b"rchar", b"wchar")))
    except OSError:
        return 0


def _on_disk(pid: int) -> tuple[int, int]:
    """Bytes that the process has had the disks read and write by now; zeros where the system does not say."""
    found = {b"read_bytes": 0, b"write_bytes": 0}
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/io", "rb") as file:
        for line in file:
            name, _, value = line.partition(b":")
            if name in found:
                found[name] = int(value)
    return found[b"read_bytes"], found[b"write_bytes"]


def _network(pid: int) -> dict[Any, tuple[int, int]]:
    """Interface -> bytes received and sent by now; the loopback is none."""
    found: dict[Any, tuple[int, int]] = {}
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/net/dev", "rb") as file:
        for line in file:
            name, colon, counters = line.partition(b":")
            if colon and name.strip() != b"lo":
                fields = counters.split()
                found[name.strip()] = (int(fields[0]), int(fields[8]))
    return found


def _core_seconds(pid: int) -> float | None:
    """Seconds of processor that the process has used; None where it is gone."""
    used = _used(pid)
    return used[0] / _TICKS_A_SECOND if used is not None else None


def _used(pid: int) -> tuple[int, int] | None:
    """Clock ticks of the processor and bytes of resident memory; None for a process that is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return int(fields[11]) + int(fields[12]), int(fields[21]) * _PAGE_BYTES
