"""Taking GPUs of this host so that no second process takes them: a file lock for each GPU."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hopsml.cluster.agent import host_locks
from hopsml.cluster.shared.gpus import HostGpu, host_gpus, parse_address, topology_text
from hopsml.errors import ArgumentError, RunError

logger = logging.getLogger(__name__)

NAME = "hopsml-gpu-locks"
_RETRY_S = 0.05  # flock cannot wait for one of several files


class GpuClaim(host_locks.HeldLocks):
    """GPUs that this process alone holds, until ``close`` or its death."""

    def __init__(self, gpus: Sequence[HostGpu], descriptors: Sequence[int]) -> None:
        super().__init__(descriptors)
        self.gpus = tuple(gpus)

    @property
    def indices(self) -> tuple[int, ...]:
        """The indices of the GPUs, in the order in which they were granted."""
        return tuple(gpu.index for gpu in self.gpus)


def claim_gpus(
    host: Sequence[HostGpu],
    addresses: Sequence[str] = (),
    count: int | None = None,
    *,
    bases: Sequence[Path] = host_locks.BASES,
    timeout_s: float = 10.0,
) -> GpuClaim:
    """Take ``count`` GPUs of ``host`` (default: as many as there are addresses), all or none.

    Those that Spark's ``addresses`` name come first. One that another process holds is replaced by a free
    one, with a sentence in the log: YARN without isolation gives several executors the same address.
    Without addresses, idle GPUs come before those on which anybody computes, and those that nobody has locked before
    those that another user says are taken; after half of ``timeout_s`` such a one is taken if nobody computes on it. A host
    without GPUs gives an empty claim, whatever Spark granted. ``bases``: folders in which those of the locks lie.

    Raises ArgumentError for an address that is none or a negative count, RunError if within ``timeout_s``
    there are not enough free GPUs; its message names who holds them.
    """
    wanted = len(addresses) if count is None else count
    if wanted < 0:
        raise ArgumentError(f"count={wanted}: a number of GPUs is 0 or more")
    granted = [parse_address(address, host) for address in addresses]
    if wanted == 0:
        return GpuClaim((), ())
    if not host:
        logger.warning(
            "%d GPU(s) were wanted (Spark granted: %s), but this host has no working NVIDIA driver: the slot "
            "computes on CPU",
            wanted,
            ", ".join(addresses) or "none",
        )
        return GpuClaim((), ())
    candidates = _preferred(host, granted)
    if wanted > len(candidates):
        raise RunError(f"{wanted} GPUs were wanted, but this host has {len(candidates)}; ask for fewer of them")
    place = host_locks.LockPlace(NAME, "GPUs", tuple(bases))
    deadline = time.monotonic() + timeout_s
    while True:
        claim = _claim_now(candidates, wanted, place, trusting=deadline - time.monotonic() > timeout_s / 2)
        if claim is not None:
            _explain(claim, granted[:wanted])
            return claim
        if time.monotonic() >= deadline:
            raise RunError(_shortage(candidates, wanted, place, timeout_s))
        time.sleep(_RETRY_S)


def claim_others(
    host: Sequence[HostGpu], held: Sequence[int], *, bases: Sequence[Path] = host_locks.BASES, timeout_s: float = 1.0
) -> tuple[list[GpuClaim], dict[int, str]]:
    """Take every GPU of ``host`` but those ``held`` that nobody else has; waits only where others are taking some just now.

    Returns the claims, and who has each GPU that is missing in them.
    """
    place = host_locks.LockPlace(NAME, "GPUs", tuple(bases))
    claims: list[GpuClaim] = []
    missing: dict[int, str] = {}
    deadline = time.monotonic() + timeout_s
    for gpu in host:
        if gpu.index in held:
            continue
        claim = None if gpu.processes else _claim_now([gpu], 1, place, trusting=True)
        while claim is None and not gpu.processes and gpu.key not in place.holders() and time.monotonic() < deadline:
            time.sleep(_RETRY_S)
            claim = _claim_now([gpu], 1, place, trusting=True)
        if claim is not None:
            claims.append(claim)
        else:
            computing = f"{gpu.processes} process(es) that compute on it" if gpu.processes else ""
            missing[gpu.index] = computing or place.holders().get(gpu.key, "another user")
    return claims, missing


def _preferred(host: Sequence[HostGpu], granted: Sequence[int]) -> list[HostGpu]:
    by_index = {gpu.index: gpu for gpu in host}
    first = [by_index[index] for index in dict.fromkeys(granted) if index in by_index]
    others = [gpu for gpu in host if gpu not in first]
    return [*first, *sorted(others, key=lambda gpu: (gpu.processes, gpu.index))]


def _explain(claim: GpuClaim, granted: Sequence[int]) -> None:
    missed = [index for index in granted if index not in claim.indices]
    if missed or len(set(granted)) < len(granted):
        logger.warning(
            "Spark granted GPU %s, which another process of this host holds or that is not there; GPU %s was "
            "taken instead (YARN without GPU isolation cannot tell its executors' GPUs apart)",
            ", ".join(map(str, missed or granted)),
            ", ".join(str(index) for index in claim.indices if index not in granted),
        )


def _index(gpu: HostGpu) -> int:
    return gpu.index


def _shortage(candidates: Sequence[HostGpu], wanted: int, place: host_locks.LockPlace, timeout_s: float) -> str:
    holders = place.holders()
    held = ", ".join(f"GPU {gpu.index} by {holders.get(gpu.key, 'nobody')}" for gpu in sorted(candidates, key=_index))
    return (
        f"{wanted} GPU(s) were wanted, but not that many came free within {timeout_s:g} s. Held: {held}. "
        "End those processes, ask for fewer executors per host, or let Spark count the GPUs "
        "(spark.executor.resource.gpu.amount)"
    )


def _claim_now(
    candidates: Sequence[HostGpu], wanted: int, place: host_locks.LockPlace, trusting: bool
) -> GpuClaim | None:
    """One pass; None if it found too few. Passes of several processes of this user exclude each other.

    ``trusting``: another user's word that a GPU is taken is believed. Else only where somebody computes on it, too.
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
            logger.warning("another user has locked GPU %d, but nobody computes on it: it is taken", found[0].index)
        if len(taken) == wanted:
            claim = GpuClaim(taken, [*descriptors, *(host_locks.keep(folder) for folder in folders)])
            descriptors = []
            return claim
        return None
    finally:
        for descriptor in [*descriptors, *gate, *(each for _, held in doubtful for each in held)]:
            os.close(descriptor)


def _idle(doubtful: Sequence[tuple[HostGpu, list[int]]]) -> tuple[HostGpu, list[int]] | None:
    return next((each for each in doubtful if not each[0].processes), None)


@dataclass(frozen=True)
class SlotGpus:
    """The GPUs of one agent. ``claim`` keeps others away as long as it is referenced; None: there is nothing to keep."""

    indices: tuple[int, ...] = ()
    bus_ids: tuple[str, ...] = ()
    topology: str = ""
    claim: GpuClaim | None = None


@dataclass(frozen=True)
class WiderSlot:
    """The GPUs of a worker that is to have all of its executor's."""

    indices: tuple[int, ...]
    claims: tuple[GpuClaim, ...]  # of those that are not its slot's
    note: str  # what people should know, "" for nothing

    def close(self) -> None:
        """Give back what is not the slot's."""
        for claim in self.claims:
            claim.close()


def all_gpus(of_slot: Sequence[int], *, bases: Sequence[Path] = host_locks.BASES) -> WiderSlot:
    """The GPUs of the slot and all others that this executor sees and nobody else has. Blocks while NVML answers."""
    host = host_gpus()
    claims, missing = claim_others(host, of_slot, bases=bases)
    indices = tuple(sorted((*of_slot, *(index for claim in claims for index in claim.indices))))
    held = ", ".join(f"GPU {index} by {who}" for index, who in sorted(missing.items()))
    note = (
        f"of the {len(host)} GPUs that its executor sees it has {len(indices)}; held by others: {held}" if held else ""
    )
    if len(indices) < 2 and not held:
        note = (
            f"its executor has {len(indices) or 'no'} GPU{'s' if not indices else ''}: nothing is mirrored between GPUs"
        )
    return WiderSlot(indices, tuple(claims), note)


def gpus_of_slot(addresses: tuple[str, ...], count: int) -> SlotGpus:
    """The GPUs at the ``addresses`` that Spark assigned, else ``count`` free ones. None is touched where neither names any.

    On a host without a driver the assigned addresses are kept as they are: the resource is emulated there.
    Blocks while NVML answers. Raises RunError when not enough are free, ArgumentError for a malformed address.
    """
    if not addresses and not count:
        return SlotGpus()
    host = host_gpus()
    if not host:
        return SlotGpus(tuple(parse_address(address) for address in addresses))
    claim = claim_gpus(host, addresses, None if addresses else count)
    return SlotGpus(claim.indices, tuple(gpu.bus_id for gpu in claim.gpus), topology_text(), claim)
