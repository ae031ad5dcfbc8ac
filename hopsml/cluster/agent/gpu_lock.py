"""Exclusive locks of this host's GPUs by one file lock per GPU."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hopsml.cluster.agent import host_locks
from hopsml.cluster.shared.gpus import HostGpu, environment_for, host_gpus, parse_address, topology_text
from hopsml.cluster.shared.protocol import Launch
from hopsml.errors import ArgumentError, RunError

logger = logging.getLogger(__name__)

NAME = "hopsml-gpu-locks"
_RETRY_S = 0.05  # seconds; flock cannot wait for one of several files


class GpuLock(host_locks.HeldLocks):
    """GPUs that only this process holds, until ``close`` or its end."""

    def __init__(self, gpus: Sequence[HostGpu], descriptors: Sequence[int]) -> None:
        super().__init__(descriptors)
        self.gpus = tuple(gpus)

    @property
    def indices(self) -> tuple[int, ...]:
        """Indices of the GPUs, in the order in which they were granted."""
        return tuple(gpu.index for gpu in self.gpus)


def acquire_gpus(
    host: Sequence[HostGpu],
    addresses: Sequence[str] = (),
    count: int | None = None,
    *,
    bases: Sequence[Path] = host_locks.BASES,
    timeout_s: float = 10.0,
) -> GpuLock:
    """Claim ``count`` GPUs of ``host``, all or none.

    GPUs that Spark's ``addresses`` name come first. One that another process holds is replaced by a free one, with a
    warning in the log: YARN without GPU isolation gives several executors the same address. Without addresses, idle
    GPUs come before those on which processes compute, and unlocked ones before those that another user's lock marks as
    taken; after half of ``timeout_s`` such a GPU is locked if no process computes on it. A host without GPUs yields an
    empty lock, whatever Spark has granted.

    Args:
        host: GPUs of this host.
        addresses: GPU addresses that Spark has assigned.
        count: number of GPUs; default: number of addresses.
        bases: folders that hold the lock folders.
        timeout_s: seconds to wait for free GPUs.

    Raises:
        ArgumentError: for a malformed address or a negative count.
        RunError: if too few GPUs are free within ``timeout_s``; its message names their holders.
    """
    wanted = len(addresses) if count is None else count
    if wanted < 0:
        raise ArgumentError(f"count={wanted}: the number of GPUs must be 0 or more")
    granted = [parse_address(address, host) for address in addresses]
    if wanted == 0:
        return GpuLock((), ())
    if not host:
        logger.warning(
            "%d GPU(s) were requested (Spark granted: %s), but this host has no working NVIDIA driver; the slot "
            "computes on the CPU",
            wanted,
            ", ".join(addresses) or "none",
        )
        return GpuLock((), ())
    candidates = _preferred(host, granted)
    if wanted > len(candidates):
        raise RunError(f"{wanted} GPUs were requested, but this host has {len(candidates)}; request fewer GPUs")
    place = host_locks.LockPlace(NAME, "GPUs", tuple(bases))
    deadline = time.monotonic() + timeout_s
    while True:
        lock = _acquire_now(candidates, wanted, place, trusting=deadline - time.monotonic() > timeout_s / 2)
        if lock is not None:
            _explain(lock, granted[:wanted])
            return lock
        if time.monotonic() >= deadline:
            raise RunError(_shortage(candidates, wanted, place, timeout_s))
        time.sleep(_RETRY_S)


def acquire_others(
    host: Sequence[HostGpu], held: Sequence[int], *, bases: Sequence[Path] = host_locks.BASES, timeout_s: float = 1.0
) -> tuple[list[GpuLock], dict[int, str]]:
    """Lock every free GPU of ``host`` except those in ``held``; waits only while other processes are locking any.

    Returns:
        The locks, and the holder of each GPU that is missing in them, by index.
    """
    place = host_locks.LockPlace(NAME, "GPUs", tuple(bases))
    locks: list[GpuLock] = []
    missing: dict[int, str] = {}
    deadline = time.monotonic() + timeout_s
    for gpu in host:
        if gpu.index in held:
            continue
        lock = None if gpu.processes else _acquire_now([gpu], 1, place, trusting=True)
        while lock is None and not gpu.processes and gpu.key not in place.holders() and time.monotonic() < deadline:
            time.sleep(_RETRY_S)
            lock = _acquire_now([gpu], 1, place, trusting=True)
        if lock is not None:
            locks.append(lock)
        else:
            computing = f"{gpu.processes} process(es) that use it" if gpu.processes else ""
            missing[gpu.index] = computing or place.holders().get(gpu.key, "another user")
    return locks, missing


def _preferred(host: Sequence[HostGpu], granted: Sequence[int]) -> list[HostGpu]:
    """Return the GPUs in order of preference: granted ones, then those with the fewest processes."""
    by_index = {gpu.index: gpu for gpu in host}
    first = [by_index[index] for index in dict.fromkeys(granted) if index in by_index]
    others = [gpu for gpu in host if gpu not in first]
    return [*first, *sorted(others, key=lambda gpu: (gpu.processes, gpu.index))]


def _explain(lock: GpuLock, granted: Sequence[int]) -> None:
    """Log that GPUs other than the granted ones were locked."""
    missed = [index for index in granted if index not in lock.indices]
    if missed or len(set(granted)) < len(granted):
        logger.warning(
            "Spark granted GPU %s, which another process of this host uses or which does not exist; GPU %s is used "
            "instead (without GPU isolation, YARN grants the same GPUs to several executors)",
            ", ".join(map(str, missed or granted)),
            ", ".join(str(index) for index in lock.indices if index not in granted),
        )


def _index(gpu: HostGpu) -> int:
    return gpu.index


def _shortage(candidates: Sequence[HostGpu], wanted: int, place: host_locks.LockPlace, timeout_s: float) -> str:
    """Return the error text for too few free GPUs, with their holders."""
    holders = place.holders()
    held = ", ".join(f"GPU {gpu.index} by {holders.get(gpu.key, 'nobody')}" for gpu in sorted(candidates, key=_index))
    return (
        f"{wanted} GPU(s) were requested, but fewer became free within {timeout_s:g} s. In use: {held}. End those "
        "processes, request fewer executors per host, or have Spark assign the GPUs "
        "(spark.executor.resource.gpu.amount)"
    )


def _acquire_now(
    candidates: Sequence[HostGpu], wanted: int, place: host_locks.LockPlace, trusting: bool
) -> GpuLock | None:
    """Try once to lock GPUs; return None if too few are free.

    Tries of this user's processes exclude each other. With ``trusting``, another user's lock alone marks a GPU as
    taken; else it must also have a process that computes.
    """
    folders = place.private_folders()
    gate = host_locks.lock_all(folders, "claiming")
    if gate is None:
        return None
    taken: list[HostGpu] = []
    descriptors: list[int] = []
    doubtful: list[tuple[HostGpu, list[int]]] = []
    try:
        for gpu in candidates:
            if len(taken) == wanted:
                break
            held = host_locks.lock_all(folders, gpu.key)
            if held is None:
                continue
            shown = place.advertise(gpu.key)
            if shown == "held":
                doubtful.append((gpu, held))
                continue
            taken.append(gpu)
            descriptors += [*held, *([shown] if shown is not None else [])]
        while len(taken) < wanted and not trusting and (found := _idle(doubtful)) is not None:
            doubtful.remove(found)
            taken.append(found[0])
            descriptors += found[1]
            logger.warning(
                "another user has locked GPU %d, but no process uses it, so this slot uses it", found[0].index
            )
        if len(taken) == wanted:
            lock = GpuLock(taken, [*descriptors, *(host_locks.hold_folder(folder) for folder in folders)])
            descriptors = []
            return lock
        return None
    finally:
        for descriptor in [*descriptors, *gate, *(each for _, held in doubtful for each in held)]:
            os.close(descriptor)


def _idle(doubtful: Sequence[tuple[HostGpu, list[int]]]) -> tuple[HostGpu, list[int]] | None:
    return next((each for each in doubtful if not each[0].processes), None)


@dataclass(frozen=True)
class SlotGpus:
    """GPUs of one agent.

    ``lock`` excludes other processes while it is referenced; None if there is nothing to lock.
    """

    indices: tuple[int, ...] = ()
    bus_ids: tuple[str, ...] = ()
    topology: str = ""
    lock: GpuLock | None = None


@dataclass(frozen=True)
class WiderSlot:
    """GPUs of a worker that gets all free GPUs of its executor."""

    indices: tuple[int, ...]
    locks: tuple[GpuLock, ...]  # of the GPUs that are not its slot's
    note: str  # for the user; "" if there is nothing to report

    def launch_with_gpus(self, launch: Launch) -> Launch:
        """Return the launch of a worker that gets these GPUs."""
        return msgspec.structs.replace(
            launch,
            gpu_indices=self.indices,
            ring_order=",".join(map(str, range(len(self.indices)))) if len(self.indices) > 1 else "",
            environment=launch.environment | environment_for(self.indices),
        )

    def close(self) -> None:
        """Release the GPUs that are not the slot's."""
        for lock in self.locks:
            lock.close()


def acquire_all_gpus(of_slot: Sequence[int], *, bases: Sequence[Path] = host_locks.BASES) -> WiderSlot:
    """Return the GPUs of the slot and all others that this executor sees and can lock.

    Blocks while NVML answers.
    """
    host = host_gpus()
    locks, missing = acquire_others(host, of_slot, bases=bases)
    indices = tuple(sorted((*of_slot, *(index for lock in locks for index in lock.indices))))
    held = ", ".join(f"GPU {index} by {who}" for index, who in sorted(missing.items()))
    note = (
        f"it has {len(indices)} of the {len(host)} GPUs that its executor sees; other processes use: {held}"
        if held
        else ""
    )
    if len(indices) < 2 and not held:
        note = (
            f"its executor has {len(indices) or 'no'} GPU{'s' if not indices else ''}, so nothing is mirrored "
            "between GPUs"
        )
    return WiderSlot(indices, tuple(locks), note)


def acquire_slot_gpus(addresses: tuple[str, ...], count: int) -> SlotGpus:
    """Claim the GPUs at the ``addresses`` that Spark assigned, or ``count`` free ones if there are none.

    Without both, no GPU is touched. On a host without a driver the assigned addresses are returned unchanged: the
    resource is emulated there. Blocks while NVML answers.

    Raises:
        RunError: if too few are free.
        ArgumentError: for a malformed address.
    """
    if not addresses and not count:
        return SlotGpus()
    host = host_gpus()
    if not host:
        return SlotGpus(tuple(parse_address(address) for address in addresses))
    lock = acquire_gpus(host, addresses, None if addresses else count)
    return SlotGpus(lock.indices, tuple(gpu.bus_id for gpu in lock.gpus), topology_text(), lock)
