"""Cores of a worker's own: which its agent keeps for it, so that no worker of another run computes there."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hopsml import settings
from hopsml.cluster.agent import host_cores, host_locks
from hopsml.cluster.agent.host_cores import HostCore
from hopsml.cluster.shared.layout import TRAINING_ROLES
from hopsml.cluster.shared.protocol import Formation, Launch
from hopsml.delivery import logger_aside
from hopsml.errors import RunError

log = logger_aside("hopsml.agent")

NAME = "hopsml-core-locks"
THREAD_VARIABLES = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
CLAIM_S = 1.0  # for which other agents that are choosing this moment are waited for
_RETRY_S = 0.002
# Without so many a worker is better off with what the system gives it: JAX's threads that compute and that communicate wait
# for each other, and on a single core they wait for each other's turns, five times as long as a step takes.
_LEAST = {"jax": 2}


@dataclass(frozen=True)
class WorkerCores:
    """What a worker is told of them: the processors that it stays on, none for those of its agent; its threads, 0: as many
    as frameworks take by themselves.
    """

    numbers: tuple[int, ...] = ()
    threads: int = 0

    def variables(self, given: Mapping[str, str]) -> dict[str, str]:
        """Variables by which frameworks start so many threads, but for those that ``given`` or the agent's own have."""
        unset = [name for name in THREAD_VARIABLES if name not in given and name not in os.environ]
        return {name: str(self.threads) for name in unset} if self.threads else {}


class SlotCores:
    """The cores that an agent holds, for one worker after the other."""

    def __init__(self, per_slot: int, bases: Sequence[Path] = host_locks.BASES) -> None:
        """``per_slot``: cores that the cluster's settings give a slot, 0 where they say nothing."""
        self._per_slot = per_slot
        self._place = host_locks.LockPlace(NAME, "cores", tuple(bases))
        self._held: host_locks.HeldLocks | None = None

    def take(self, formation: Formation, launch: Launch) -> WorkerCores:
        """Those for this worker, instead of those that are held; blocks for ``CLAIM_S`` at most, raises nothing."""
        self.give_back()
        asked = settings.cores_of(formation.spec.environment)
        group = formation.spec.group
        # Servers wait for calls of each other's: with a thread or two they would do so for ever.
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
        """Nobody computes there any more."""
        if self._held is not None:
            self._held.close()
            self._held = None

    def _claim(self, cores: Sequence[HostCore], count: int, launch: Launch) -> tuple[int, ...]:
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
        """While no other agent of this user chooses: those of other users are seen core by core."""
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
        """Descriptors that hold a core; None where somebody else has it, of this user or, as far as it is shown, another."""
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
