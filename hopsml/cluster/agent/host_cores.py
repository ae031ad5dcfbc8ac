"""The cores of a host that this process may use, how near they are to each other, and which of them to take; mostly pure."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

_CPUS = Path("/sys/devices/system/cpu")
_CONTROL_GROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, order=True)
class HostCore:
    """A processor as the system counts them: a core with two threads is two of them. Sorted, neighbours stand together."""

    node: int  # of memory (NUMA); 0 where the system does not tell
    package: int
    core: int  # of the package
    number: int


def host_cores(cpus: Path = _CPUS) -> list[HostCore]:
    """Those in this process's affinity mask, neighbours together: what its cgroup, YARN or whoever started it allows."""
    return sorted(_core(number, cpus / f"cpu{number}") for number in os.sched_getaffinity(0))


def _core(number: int, folder: Path) -> HostCore:
    nodes = [int(entry.name[4:]) for entry in folder.glob("node[0-9]*")]
    topology = folder / "topology"
    return HostCore(
        min(nodes, default=0),
        _number(topology / "physical_package_id", 0),
        _number(topology / "core_id", number),
        number,
    )


def _number(path: Path, otherwise: int) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return otherwise


def quota(groups: Path = _CONTROL_GROUPS, own: Path = Path("/proc/self/cgroup")) -> float:
    """Cores' worth of time that this process and its control group may use together; infinite without a limit."""
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
    """Of one control group, of either version."""
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
    """How many cores a worker computes on: as many threads, and whether cores of that number are kept for it alone."""

    threads: int
    own: bool


def share(available: int, workers: int, asked: int = 0, slot: int = 0) -> Share | None:
    """What one of the ``workers`` that train together on a host gets of its cores; None where nothing is to be arranged.

    Args:
        available: cores, or as many as the control group's time is worth.
        workers: of the run on this host.
        asked: cores a worker, by the user; 0: not said.
        slot: cores that the cluster's settings give a slot; 0: not said.

    A worker that is alone is left as it is, and none has cores of its own where there are not enough for all: more workers
    than cores would wait for each other on one while another rests, which the system can avoid and we cannot.
    """
    wanted = asked or slot or (available // workers if workers > 1 else 0)
    if not wanted and workers < 2:
        return None
    threads = max(1, min(wanted, available))
    return Share(threads, own=0 < wanted * workers <= available and (workers > 1 or asked > 0))


def chosen(cores: Sequence[HostCore], free: Collection[int], count: int, place: int) -> tuple[int, ...]:
    """``count`` processors out of ``free``, neighbours where possible; () where there are not so many.

    Args:
        cores: all of the host, sorted.
        free: numbers of those that nobody holds.
        count: how many are wanted.
        place: of this worker among those of its run on this host, from 0. Each takes the processors of its place where they
            are free, so that they come to different ones even where they cannot see each other's locks.
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
    """The cores in groups of ``count``, none across two nodes of memory; whole cores before the second threads of others."""
    found: list[tuple[int, ...]] = []
    for node in dict.fromkeys(core.node for core in cores):
        inside = [core for core in cores if core.node == node]
        if count == 1:  # a thread of each core first: two workers on one core take turns
            inside = sorted(inside, key=lambda core: (_thread_of(core, inside), core))
        found += [tuple(c.number for c in inside[at : at + count]) for at in range(0, len(inside), count)]
    return found


def _thread_of(core: HostCore, cores: Sequence[HostCore]) -> int:
    """The how-manieth thread of its core it is, from 0."""
    return [one.number for one in cores if (one.package, one.core) == (core.package, core.core)].index(core.number)
