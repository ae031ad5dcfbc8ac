"""Resource usage of one worker (CPU, memory, disk, network, its GPUs), and the time for which it has been idle.

Metric names are those of MLflow's system metrics. Only the slot's GPUs are read, not all of the host. Control
groups provide the memory limit, which replaces the host's size if set, and the kills by the kernel for lack of memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hopsml.core import processes
from hopsml.core.variables import Settings

Traffic = Mapping[str, tuple[int, int]]  # purpose -> bytes received and sent
ROOT, PROC = Path("/sys/fs/cgroup"), Path("/proc")
_NO_LIMIT = 1 << 60  # version 1 expresses "no limit" by a number near 2**63


@dataclass(frozen=True)
class MemoryFiles:
    """Memory accounting of a control group: the file with its usage, and its limit in bytes."""

    usage: Path
    limit_bytes: int

    def usage_bytes(self) -> int | None:
        """Return the memory in use, in bytes; None if the file cannot be read any more."""
        try:
            return int(self.usage.read_text())
        except (OSError, ValueError):
            return None


class OomWatch:
    """Detector of an out-of-memory kill of one process by the kernel.

    The kernel counts its victims per control group, whichever limit was reached: the group's, a parent's or the machine's.
    """

    def __init__(self, pid: int, root: Path = ROOT, proc: Path = PROC) -> None:
        """Read the present counter for process ``pid``, which is still running."""
        self._file = next((file for file in _event_files(pid, root, proc) if _oom_kills(file) is not None), None)
        self._before = _oom_kills(self._file)
        self._memory = memory_of(pid, root, proc)

    def explain(self) -> str:
        """Return what is known about the sender of the SIGKILL that has ended the process, with the source."""
        now = _oom_kills(self._file)
        if now is None or self._before is None:
            return (
                "hopsml did not send this signal; whether the kernel sent it for lack of memory is unknown, since no "
                "memory.events of a control group can be read"
            )
        if now > self._before:
            limit = f"; its memory limit is {self._memory.limit_bytes >> 20} MB" if self._memory else ""
            rise = f"oom_kill in {self._file} went from {self._before} to {now}"
            return f"{processes.KERNEL_KILL}: {rise}{limit}"
        return (
            f"neither hopsml nor the kernel (for lack of memory) sent this signal, since oom_kill in {self._file} is "
            f"still {now}; check for a resource manager, another user or a script that ends processes on this host"
        )


def _oom_kills(file: Path | None) -> int | None:
    """Return the counter ``oom_kill`` of a memory.events file; None if it has none, or cannot be read."""
    try:
        lines = file.read_text().splitlines() if file is not None else []
    except OSError:
        return None
    return next((int(value) for name, _, value in (line.partition(" ") for line in lines) if name == "oom_kill"), None)


def _event_files(pid: int, root: Path, proc: Path) -> Iterator[Path]:
    """Yield the files that count out-of-memory kills, the process's own group first."""
    for usage, _ in _candidates(_groups(pid, proc), root):
        yield usage.with_name("memory.events" if usage.name == "memory.current" else "memory.oom_control")


def _groups(pid: int, proc: Path) -> list[str]:
    """Return the lines of the process's cgroup file; none if it cannot be read."""
    try:
        return (proc / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return []


def memory_of(pid: int, root: Path = ROOT, proc: Path = PROC) -> MemoryFiles | None:
    """Return the process's control group, or the nearest above it, that has a memory limit; None if none has."""
    for usage, limit in _candidates(_groups(pid, proc), root):
        try:
            text = limit.read_text().strip()
        except OSError:
            continue
        if text.isdigit() and int(text) < _NO_LIMIT and usage.is_file():
            return MemoryFiles(usage, int(text))
    return None


def _candidates(lines: list[str], root: Path) -> Iterator[tuple[Path, Path]]:
    """Yield the files of usage and limit, the process's own group first.

    Inside a container that group appears as the root.
    """
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers not in ("", "memory"):
            continue
        base = root if controllers == "" else root / "memory"
        names = (
            ("memory.current", "memory.max")
            if controllers == ""
            else ("memory.usage_in_bytes", "memory.limit_in_bytes")
        )
        inner = base / path.strip("/")
        for folder in (inner, *inner.parents):
            yield folder / names[0], folder / names[1]
            if folder == base:
                break


_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MEGABYTE = 1_000_000
IDLE_S = 5.0  # shortest idle time that is reported
LIST_S = 5.0  # interval in which descendants of an idle worker are listed, as that scans all processes
_CORE_SHARE = 0.05  # of one core: used by threads that only wait, and far less than any computation
_BYTES_A_SECOND = 64 << 10


class UsageSampler:
    """Sampler of a worker with all its descendants; not thread-safe.

    Bytes moved count from the first sample. Network figures without a purpose are those of the worker's network
    namespace: of the host, unless the worker runs in a container. Those with a purpose (collective, feed, storage) are
    what hopsml itself has moved for the worker.
    """

    def __init__(
        self, pid: int, gpu_indices: tuple[int, ...] = (), traffic: Callable[[], Traffic] = dict[str, tuple[int, int]]
    ) -> None:
        """Prepare the sampler.

        Args:
            pid: The worker's process.
            gpu_indices: Its GPUs.
            traffic: Returns the bytes that hopsml has received and sent for it so far, by purpose.
        """
        self._pid, self._gpu_indices, self._traffic = pid, gpu_indices, traffic
        self._ticks: dict[int, int] = {}
        self._at_s = time.monotonic()
        self._disk = _Growing()
        self._network = _Growing()
        self._memory = memory_of(pid)
        self._nvml: Any = None
        self._handles: dict[int, Any] = {}

    def sample(self) -> dict[str, float]:
        """Return the usage since the last sample; empty once the worker has exited.

        CPU is in percent of one core, from the second sample on; other units are in the names (1 MB is 10**6 bytes).
        """
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
        for purpose, (received_bytes, sent_bytes) in self._traffic().items():
            if received_bytes or sent_bytes:
                values[f"network_{purpose}_receive_megabytes"] = received_bytes / _MEGABYTE
                values[f"network_{purpose}_transmit_megabytes"] = sent_bytes / _MEGABYTE
        for place, index in enumerate(self._gpu_indices):
            values.update(self._gpu(place, index))
        return values

    def _container(self) -> dict[str, float]:
        """Return the memory usage of the worker's container, in percent of its limit."""
        usage = self._memory.usage_bytes() if self._memory is not None else None
        if self._memory is None or usage is None:
            return {}
        return {"container_memory_usage_percentage": 100.0 * usage / self._memory.limit_bytes}

    def _gpu(self, place: int, index: int) -> dict[str, float]:
        """Return the figures of one GPU; nothing where NVML is missing or refuses.

        Handles are retained, and the processes of a GPU are never listed: that takes milliseconds under a lock of the
        driver.
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
        """Shut NVML down, if it was used."""
        if self._nvml is not None:
            with contextlib.suppress(Exception):
                self._nvml.nvmlShutdown()
            self._nvml, self._handles = None, {}


def sampling_interval_s(environment: Mapping[str, str]) -> float:
    """Return the seconds between two samples, by the variables of a run; 0, also if it is empty or missing: none."""
    variable = Settings.system_metrics_s.name
    return Settings({variable: environment.get(variable) or "0"}).system_metrics_s


async def samples(
    pid: int,
    gpu_indices: tuple[int, ...],
    interval_s: float,
    traffic: Callable[[], Traffic] = dict[str, tuple[int, int]],
) -> AsyncGenerator[tuple[int, dict[str, float]], None]:
    """Yield the number of a sample, from 0, and a worker's usage since the sample before.

    Args:
        pid: the worker's process.
        gpu_indices: its GPUs.
        interval_s: seconds between two samples.
        traffic: as of ``UsageSampler``.
    """
    sampler = UsageSampler(pid, gpu_indices, traffic)
    try:
        sampler.sample()  # sets the starting point of the counters
        for number in itertools.count():
            await asyncio.sleep(interval_s)
            if metrics := sampler.sample():
                yield number, metrics
    finally:
        sampler.close()


class _Growing:
    """Growth, in megabytes, of two counters summed over sources that appear and disappear.

    A process that ends passes its counts on to the parent that waits for it, so the sum never counts them twice.
    """

    def __init__(self) -> None:
        self._begun: dict[Any, tuple[int, int]] | None = None  # source -> its first values
        self._grown = [0, 0]

    def update(self, now: dict[Any, tuple[int, int]]) -> tuple[float, float]:
        """Return the growth of both counters since the first call, in megabytes.

        A source that appears after the first call started at 0.

        Args:
            now: the counters of each source, in bytes.
        """
        if self._begun is None:
            self._begun = dict(now)
        begun = self._begun
        for place in (0, 1):
            grown = sum(counters[place] - begun.get(source, (0, 0))[place] for source, counters in now.items())
            self._grown[place] = max(self._grown[place], grown)
        return self._grown[0] / _MEGABYTE, self._grown[1] / _MEGABYTE


class Idleness:
    """Detector of the time for which a worker and its descendants have used no CPU, and read and written nothing."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._looked = self._since = time.monotonic()
        self._used: dict[int, tuple[float, int]] = {}
        self._below: list[int] = []
        self._listed = 0.0
        self._waited_s = 0.0

    def seconds(self, waited_s: float = 0.0) -> float:
        """Return for how many seconds the worker has been idle without waiting for storage; 0.0 below ``IDLE_S``.

        Call it with each heartbeat.

        Args:
            waited_s: total time for which it has waited for storage.
        """
        now = time.monotonic()
        self._since, self._waited_s = min(now, self._since + waited_s - self._waited_s), waited_s
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
        """List the worker's descendants, which is needed only while the worker itself is idle."""
        if now - self._since < IDLE_S:
            self._below = []
        elif now - self._listed >= LIST_S:
            self._below, self._listed = processes.descendants_of(self._pid), now

    def _look(self) -> dict[int, tuple[float, int]]:
        """Return the CPU seconds and the bytes moved so far, per process."""
        members = (self._pid, *self._below)
        return {pid: (core_s, _moved(pid)) for pid in members if (core_s := _core_seconds(pid)) is not None}


class StorageWaits:
    """Total time for which a worker, or one of the processes that it has forked, has waited for storage."""

    def __init__(self) -> None:
        self._known: dict[int, float] = {}  # by process
        self._total_s, self._looked = 0.0, time.monotonic()

    def seconds(self, recorded: Iterable[tuple[int, float, float]]) -> float:
        """Return the total so far, in which waits of several processes at the same time count once.

        Args:
            recorded: process, seconds of ended waits, and monotonic time since which it waits now; 0.0: it does not.
        """
        now = time.monotonic()
        before, self._known = self._known, {}
        for process, waited_s, since in recorded:
            is_waiting = since > 0.0 and not processes.has_ended(process)
            self._known[process] = waited_s + (max(0.0, now - since) if is_waiting else 0.0)
        longest_s = max((known - before.get(process, 0.0) for process, known in self._known.items()), default=0.0)
        self._total_s += min(max(0.0, longest_s), now - self._looked)
        self._looked = now
        return self._total_s


def _moved(pid: int) -> int:
    """Return the bytes that the process has read and written; 0 if the system does not report them."""
    try:
        with open(f"/proc/{pid}/io", "rb") as file:
            return sum(int(line.split()[1]) for line in file if line.startswith((b"rchar", b"wchar")))
    except OSError:
        return 0


def _on_disk(pid: int) -> tuple[int, int]:
    """Return the bytes that the process has read from and written to disk; zeros if the system does not report them."""
    found = {b"read_bytes": 0, b"write_bytes": 0}
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/io", "rb") as file:
        for line in file:
            name, _, value = line.partition(b":")
            if name in found:
                found[name] = int(value)
    return found[b"read_bytes"], found[b"write_bytes"]


def _network(pid: int) -> dict[Any, tuple[int, int]]:
    """Return the bytes received and sent, per interface, without the loopback."""
    found: dict[Any, tuple[int, int]] = {}
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/net/dev", "rb") as file:
        for line in file:
            name, colon, counters = line.partition(b":")
            if colon and name.strip() != b"lo":
                fields = counters.split()
                found[name.strip()] = (int(fields[0]), int(fields[8]))
    return found


def _core_seconds(pid: int) -> float | None:
    """Return the CPU seconds of the process; None if it has exited."""
    used = _used(pid)
    return used[0] / _TICKS_A_SECOND if used is not None else None


def _used(pid: int) -> tuple[int, int] | None:
    """Return the CPU clock ticks and the bytes of resident memory; None for a process that has exited."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return int(fields[11]) + int(fields[12]), int(fields[21]) * _PAGE_BYTES
