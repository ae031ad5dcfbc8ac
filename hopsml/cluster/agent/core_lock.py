"""Exclusive processor cores for a worker, claimed by its agent so that workers of other runs do not use them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hopsml.cluster.agent import host_cores, host_locks
from hopsml.cluster.agent.host_cores import HostCore
from hopsml.cluster.shared.layout import TRAINING_ROLES
from hopsml.cluster.shared.protocol import Formation, Launch
from hopsml.core import settings
from hopsml.core.callbacks import nonblocking_logger
from hopsml.errors import RunError

log = nonblocking_logger("hopsml.agent")

NAME = "hopsml-core-locks"
THREAD_VARIABLES = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
CLAIM_S = 1.0  # seconds to wait for other agents that are choosing at this moment
_RETRY_S = 0.002
# Fewer cores make JAX slower than no claim: its computing and communicating threads wait for each other, and on a
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
    """Cores that an agent claims for its workers, for one at a time."""

    def __init__(self, per_slot: int, bases: Sequence[Path] = host_locks.BASES) -> None:
        """Create the claim; no core is locked yet.

        Args:
            per_slot: cores per slot in the cluster's settings; 0 if they are not set.
            bases: folders that hold the lock folders.
        """
        self._per_slot = per_slot
        self._place = host_locks.LockPlace(NAME, "cores", tuple(bases))
        self._held: host_locks.HeldLocks | None = None

    def claim_for(self, formation: Formation, launch: Launch) -> WorkerCores:
        """Release the cores that are held, and claim those of a new worker.

        It blocks for ``CLAIM_S`` seconds at most and raises nothing.
        """
        self.give_back()
        asked = settings.cores_of(formation.spec.environment)
        group = formation.spec.group
        # Parameter servers wait for calls of each other: with one or two threads that would be a deadlock.
        waits_for_others = group.collective and not group.relaunches
        trains = waits_for_others and launch.role in TRAINING_ROLES and not launch.gpu_indices
        if asked == 0 or not trains:
            return WorkerCores()
        cores, workers = host_cores.host_cores(), int(launch.environment.get("LOCAL_WORLD_SIZE", "1"))
        available = int(max(1, min(len(cores), host_cores.quota())))
        share = host_cores.share(available, workers, asked or 0, self._per_slot)
        if share is None or (asked is None and share.threads < _LEAST.get(formation.spec.framework, 1)):
            return WorkerCores()
        if not share.own:
            log.info("no cores of its own for rank %d: %d workers share %d", launch.rank, workers, available)
            return WorkerCores(threads=share.threads)
        return WorkerCores(self._claim(cores, share.threads, launch), share.threads)

    def give_back(self) -> None:
        """Release the cores that are held."""
        if self._held is not None:
            self._held.close()
            self._held = None

    def _claim(self, cores: Sequence[HostCore], count: int, launch: Launch) -> tuple[int, ...]:
        """Claim ``count`` cores, waiting for other agents that are choosing; () if that fails."""
        deadline = time.monotonic() + CLAIM_S
        try:
            while time.monotonic() < deadline:
                folders = self._place.private_folders()
                if gate := host_locks.lock_all(folders, "claiming"):
                    try:
                        return self._claim_now(cores, count, launch, folders)
                    finally:
                        for descriptor in gate:
                            os.close(descriptor)
                time.sleep(_RETRY_S)
        except RunError as error:
            log.warning("no cores of its own for rank %d: %s", launch.rank, error)
        return ()

    def _claim_now(
        self, cores: Sequence[HostCore], count: int, launch: Launch, folders: Sequence[Path]
    ) -> tuple[int, ...]:
        """Claim cores while this user's other agents are locked out; cores of other users are detected one by one."""
        free = {core.number for core in cores}
        while wanted := host_cores.chosen(cores, free, count, launch.local_rank):
            descriptors: list[int] = []
            for number in wanted:
                held = self._lock(folders, number)
                if held is None:
                    free.discard(number)
                    break
                descriptors += held
            else:
                self._held = host_locks.HeldLocks([*descriptors, *map(host_locks.keep, folders)])
                return wanted
            for descriptor in descriptors:
                os.close(descriptor)
        log.info("no cores of its own for rank %d: other runs on this host hold them", launch.rank)
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
