"""What one worker uses of its machine: processor, memory and, where its slot has any, its GPUs. Sampled by its agent.

Names are those that MLflow uses for its own system metrics. Only the slot's GPUs are looked at, not all of the host.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

from hopsml.cluster.shared import processes

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MEGABYTE = 1_000_000


class Sampler:
    """Samples a worker with all its descendants; not for several threads at once."""

    def __init__(self, pid: int, gpu_indices: tuple[int, ...] = ()) -> None:
        self._pid, self._gpu_indices = pid, gpu_indices
        self._ticks: dict[int, int] = {}
        self._at_s = time.monotonic()
        self._nvml: Any = None

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
        for place, index in enumerate(self._gpu_indices):
            values.update(self._gpu(place, index))
        return values

    def _gpu(self, place: int, index: int) -> dict[str, float]:
        """Nothing where NVML is missing or refuses: a figure less, no trouble."""
        with contextlib.suppress(Exception):
            import pynvml

            if self._nvml is None:
                pynvml.nvmlInit()
                self._nvml = pynvml
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            return {
                f"gpu_{place}_utilization_percentage": float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu),
                f"gpu_{place}_memory_usage_megabytes": memory.used / _MEGABYTE,
                f"gpu_{place}_power_usage_watts": pynvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            }
        return {}

    def close(self) -> None:
        """Let go of NVML."""
        if self._nvml is not None:
            with contextlib.suppress(Exception):
                self._nvml.nvmlShutdown()
            self._nvml = None


def core_seconds(pid: int) -> float | None:
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
