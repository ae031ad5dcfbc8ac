"""Cores of a host that this process may use, their proximity, and the choice among them; mostly pure."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

_CPUS = Path("/sys/devices/system/cpu")
_CONTROL_GROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, order=True)
class HostCore:
    """Logical processor as the system numbers it: a core with two threads counts twice.

    Sorting groups neighbours.
    """

    node: int  # NUMA node; 0 if the system does not report it
    package: int
    core: int  # within the package
    number: int


def host_cores(cpus: Path = _CPUS) -> list[HostCore]:
    """Return the processors in this process's affinity mask, sorted so that neighbours are adjacent.

    The mask is set by the control group, YARN or the parent process.
    """
    return sorted(_core(number, cpus / f"cpu{number}") for number in os.sched_getaffinity(0))


def _core(number: int, folder: Path) -> HostCore:
    """Read the position of a processor from sysfs."""
    nodes = [int(entry.name[4:]) for entry in folder.glob("node[0-9]*")]
    topology = folder / "topology"
    return HostCore(
        min(nodes, default=0),
        _number(topology / "physical_package_id", 0),
        _number(topology / "core_id", number),
        number,
    )


def _number(path: Path, otherwise: int) -> int:
    """Read a number from a file; ``otherwise`` if that fails."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return otherwise


def quota(groups: Path = _CONTROL_GROUPS, own: Path = Path("/proc/self/cgroup")) -> float:
    """Return the CPU time limit of this process's control group in cores; infinite without a limit."""
    least = float("inf")
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return least
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        folder = groups / controllers / path.strip("/")
        for above in (folder, *folder.parents):
            if not above.is_relative_to(groups):
                break
            least = min(least, _limit(above))
    return least


def _limit(group: Path) -> float:
    """Return the limit of one control group in cores, of either cgroup version."""
    try:
        text = (group / "cpu.max").read_text().split()
    except OSError:
        try:
            text = [(group / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period")]
        except OSError:
            return float("inf")
    return int(text[0]) / int(text[1]) if text[0] not in ("max", "-1") else float("inf")


@dataclass(frozen=True)
class Share:
    """Number of threads of a worker, and whether as many cores are reserved for it."""

    threads: int
    own: bool


def share(available: int, workers: int, asked: int = 0, slot: int = 0) -> Share | None:
    """Return the share of the host's cores for one of its ``workers``; None if threads and cores are left as they are.

    A single worker without such a setting is left unchanged. No worker gets exclusive cores where there are too few for
    all: workers would wait for each other on one core while another is idle, which the system's scheduler can avoid.

    Args:
        available: number of cores, or the control group's CPU time limit in cores.
        workers: number of workers of the run on this host.
        asked: cores per worker requested by the user; 0: not set.
        slot: cores per slot in the cluster's settings; 0: not set.
    """
    wanted = asked or slot or (available // workers if workers > 1 else 0)
    if not wanted and workers < 2:
        return None
    threads = max(1, min(wanted, available))
    return Share(threads, own=0 < wanted * workers <= available and (workers > 1 or asked > 0))


def chosen(cores: Sequence[HostCore], free: Collection[int], count: int, place: int) -> tuple[int, ...]:
    """Return ``count`` processors out of ``free``, neighbours where possible; () if there are too few.

    Args:
        cores: all of the host, sorted.
        free: numbers of those that no process holds.
        count: how many are needed.
        place: index of this worker among those of its run on this host, from 0. Each takes the processors at its index
            if they are free, so that workers choose different ones even where they cannot see each other's locks.
    """
    numbers = [core.number for core in cores]
    own = [group for group in _slices(cores, count) if len(group) == count]
    if place < len(own) and set(own[place]) <= set(free):
        return own[place]
    for group in own:
        if set(group) <= set(free):
            return group
    rest = [number for number in numbers if number in free]
    return tuple(rest[:count]) if len(rest) >= count else ()


def _slices(cores: Sequence[HostCore], count: int) -> list[tuple[int, ...]]:
    """Split the cores into groups of ``count``, none across two NUMA nodes.

    With ``count`` 1, first threads come first.
    """
    found: list[tuple[int, ...]] = []
    for node in dict.fromkeys(core.node for core in cores):
        inside = [core for core in cores if core.node == node]
        if count == 1:  # a thread of each core first: two workers on one core would alternate
            inside = sorted(inside, key=lambda core: (_thread_of(core, inside), core))
        found += [tuple(c.number for c in inside[at : at + count]) for at in range(0, len(inside), count)]
    return found


def _thread_of(core: HostCore, cores: Sequence[HostCore]) -> int:
    """Return the index of the thread within its core, from 0."""
    return [one.number for one in cores if (one.package, one.core) == (core.package, core.core)].index(core.number)
