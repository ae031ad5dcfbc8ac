"""Taking GPUs of this host so that no second process takes them: a file lock for each GPU."""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hopsml.cluster.agent import gpu_locks
from hopsml.cluster.shared.gpus import HostGpu, host_gpus, parse_address, topology_text
from hopsml.errors import ArgumentError, RunError

logger = logging.getLogger(__name__)

_RETRY_S = 0.05  # flock cannot wait for one of several files


class GpuClaim:
    """GPUs that this process alone holds, until ``close`` or its death; usable as a context manager.

    The locks are flocks, which the kernel drops with the last descriptor, so after kill -9 too. Descriptors
    are not inherited by programs that are started, and are closed in forked children.
    """

    def __init__(self, gpus: Sequence[HostGpu], descriptors: Sequence[int]) -> None:
        self.gpus = tuple(gpus)
        self._descriptors = list(descriptors)
        if self._descriptors:
            _open_claims.add(self)

    @property
    def indices(self) -> tuple[int, ...]:
        """The indices of the GPUs, in the order in which they were granted."""
        return tuple(gpu.index for gpu in self.gpus)

    def close(self) -> None:
        """Give the GPUs back. May be called twice."""
        for descriptor in self._descriptors:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # also drops what a child forked behind Python's back shares
        self.forget()

    def forget(self) -> None:
        """Close the descriptors without unlocking: for a forked child, which must not hold them."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()
        _open_claims.discard(self)

    def __enter__(self) -> GpuClaim:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_open_claims: set[GpuClaim] = set()


def _forget_all() -> None:
    for claim in list(_open_claims):
        claim.forget()


os.register_at_fork(after_in_child=_forget_all)


def claim_gpus(
    host: Sequence[HostGpu],
    addresses: Sequence[str] = (),
    count: int | None = None,
    *,
    bases: Sequence[Path] = gpu_locks.BASES,
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
    deadline = time.monotonic() + timeout_s
    while True:
        claim = _claim_now(candidates, wanted, bases, trusting=deadline - time.monotonic() > timeout_s / 2)
        if claim is not None:
            _explain(claim, granted[:wanted])
            return claim
        if time.monotonic() >= deadline:
            raise RunError(_shortage(candidates, wanted, bases, timeout_s))
        time.sleep(_RETRY_S)


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


def _shortage(candidates: Sequence[HostGpu], wanted: int, bases: Sequence[Path], timeout_s: float) -> str:
    holders = gpu_locks.holders(bases)
    held = ", ".join(f"GPU {gpu.index} by {holders.get(gpu.key, 'nobody')}" for gpu in sorted(candidates, key=_index))
    return (
        f"{wanted} GPU(s) were wanted, but not that many came free within {timeout_s:g} s. Held: {held}. "
        "End those processes, ask for fewer executors per host, or let Spark count the GPUs "
        "(spark.executor.resource.gpu.amount)"
    )


def _claim_now(candidates: Sequence[HostGpu], wanted: int, bases: Sequence[Path], trusting: bool) -> GpuClaim | None:
    """One pass; None if it found too few. Passes of several processes of this user exclude each other.

    ``trusting``: another user's word that a GPU is taken is believed. Else only where somebody computes on it, too.
    """
    folders = gpu_locks.private_folders(bases)
    gate = gpu_locks.lock_all(folders, "claiming")
    if gate is None:
        return None
    taken: list[HostGpu] = []
    descriptors: list[int] = []
    doubtful: list[tuple[HostGpu, list[int]]] = []
    try:
        for gpu in candidates:
            if len(taken) == wanted:
                break
            held = gpu_locks.lock_all(folders, gpu.key)
            if held is None:
                continue
            shown = gpu_locks.advertise(bases, gpu.key)
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
            claim = GpuClaim(taken, [*descriptors, *(gpu_locks.keep(folder) for folder in folders)])
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
