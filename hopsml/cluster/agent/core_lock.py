"""Exclusive processor cores for a worker: those of the host, the choice among them, and their lock by the agent."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hopsml.cluster.agent import host_locks
from hopsml.cluster.shared.layout import TRAINING_ROLES
from hopsml.cluster.shared.protocol import Formation, Launch
from hopsml.core.callbacks import nonblocking_logger
from hopsml.core.variables import Settings
from hopsml.errors import RunError

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


def cpu_quota(groups: Path = _CONTROL_GROUPS, own: Path = Path("/proc/self/cgroup")) -> float:
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


def share_of_cores(available: int, workers: int, asked: int = 0, slot: int = 0) -> Share | None:
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


def choose_cores(cores: Sequence[HostCore], free: Collection[int], count: int, place: int) -> tuple[int, ...]:
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


log = nonblocking_logger("hopsml.agent")

NAME = "hopsml-core-locks"
THREAD_VARIABLES = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
CLAIM_S = 1.0  # seconds to wait for other agents that are choosing at this moment
_RETRY_S = 0.002
# Fewer cores make JAX slower than no lock: its computing and communicating threads wait for each other, and on a
# single core a step takes five times as long.
_LEAST = {"jax": 2}


@dataclass(frozen=True)
class WorkerCores:
    """Processors and threads assigned to one worker.

    Without ``numbers`` the worker uses the processors of its agent; ``threads`` = 0 leaves the number to the
    frameworks.
    """

    numbers: tuple[int, ...] = ()
    threads: int = 0

    def variables(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return variables that set the frameworks' number of threads.

        Those in ``given`` or in the agent's environment are left out.
        """
        unset = [name for name in THREAD_VARIABLES if name not in given and name not in os.environ]
        return {name: str(self.threads) for name in unset} if self.threads else {}


class SlotCores:
    """Cores that an agent locks for its workers, for one at a time."""

    def __init__(self, per_slot: int, bases: Sequence[Path] = host_locks.BASES) -> None:
        """Create the lock; no core is locked yet.

        Args:
            per_slot: cores per slot in the cluster's settings; 0 if they are not set.
            bases: folders that hold the lock folders.
        """
        self._per_slot = per_slot
        self._place = host_locks.LockPlace(NAME, "cores", tuple(bases))
        self._held: host_locks.HeldLocks | None = None

    def acquire_for(self, formation: Formation, launch: Launch) -> WorkerCores:
        """Release the cores that are held, and lock those of a new worker.

        It blocks for ``CLAIM_S`` seconds at most and raises nothing.
        """
        self.release()
        asked = Settings(formation.spec.environment).cores
        group = formation.spec.group
        # Parameter servers wait for calls of each other: with one or two threads that would be a deadlock.
        waits_for_others = group.collective and not group.relaunches
        trains = waits_for_others and launch.role in TRAINING_ROLES and not launch.gpu_indices
        if asked == 0 or not trains:
            return WorkerCores()
        cores, workers = host_cores(), int(launch.environment.get("LOCAL_WORLD_SIZE", "1"))
        available = int(max(1, min(len(cores), cpu_quota())))
        share = share_of_cores(available, workers, asked or 0, self._per_slot)
        if share is None or (asked is None and share.threads < _LEAST.get(formation.spec.framework, 1)):
            return WorkerCores()
        if not share.own:
            log.info("no separate cores for rank %d: %d workers share %d cores", launch.rank, workers, available)
            return WorkerCores(threads=share.threads)
        return WorkerCores(self._acquire(cores, share.threads, launch), share.threads)

    def release(self) -> None:
        """Release the cores that are held."""
        if self._held is not None:
            self._held.close()
            self._held = None

    def _acquire(self, cores: Sequence[HostCore], count: int, launch: Launch) -> tuple[int, ...]:
        """Claim ``count`` cores, waiting for other agents that are choosing; () if that fails."""
        deadline = time.monotonic() + CLAIM_S
        try:
            while time.monotonic() < deadline:
                folders = self._place.private_folders()
                if gate := host_locks.lock_all(folders, "claiming"):
                    try:
                        return self._acquire_now(cores, count, launch, folders)
                    finally:
                        for descriptor in gate:
                            os.close(descriptor)
                time.sleep(_RETRY_S)
        except RunError as error:
            log.warning("no separate cores for rank %d: %s", launch.rank, error)
        return ()

    def _acquire_now(
        self, cores: Sequence[HostCore], count: int, launch: Launch, folders: Sequence[Path]
    ) -> tuple[int, ...]:
        """Claim cores while this user's other agents are locked out; cores of other users are detected one by one."""
        free = {core.number for core in cores}
        while wanted := choose_cores(cores, free, count, launch.local_rank):
            descriptors: list[int] = []
            for number in wanted:
                held = self._lock(folders, number)
                if held is None:
                    free.discard(number)
                    break
                descriptors += held
            else:
                self._held = host_locks.HeldLocks([*descriptors, *map(host_locks.hold_folder, folders)])
                return wanted
            for descriptor in descriptors:
                os.close(descriptor)
        log.info("no separate cores for rank %d: other runs on this host have locked them", launch.rank)
        return ()

    def _lock(self, folders: Sequence[Path], number: int) -> list[int] | None:
        """Return descriptors that hold a core; None if another process holds it, as far as that can be detected."""
        name = f"core-{number}"
        held = host_locks.lock_all(folders, name)
        if held is None:
            return None
        shown = self._place.advertise(name)
        if shown == "held":
            for descriptor in held:
                os.close(descriptor)
            return None
        return [*held, *([shown] if shown is not None else [])]
