"""State of one job in the scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from hopsml.core.states import Lifecycle
from hopsml.service.scheduler.policy import CORES_LIKE_A_GPU, GangRequest, Policy
from hopsml.service.scheduler.resources import Placement, Resources

# Order within a queue, smaller first: (0 if the job has waited too long, else 1; minus the priority; level).
Rank = tuple[int, int, int]
OVERDUE: Rank = (0, 0, 0)


class JobPhase(StrEnum):
    """Phase of a job in the scheduler.

    PLACED: its room is promised, but other jobs have not released it yet. ENDING: it must release its own room.
    """

    WAITING = Lifecycle.WAITING.value
    PLACED = "PLACED"
    RUNNING = Lifecycle.RUNNING.value
    ENDING = "ENDING"


@dataclass(slots=True)
class QueuedJob:
    """Job that waits or runs, with its account of waiting and attained service.

    Times are in seconds of the caller's clock. ``attained_s`` is in GPU-seconds, and for a running job is counted up to
    ``since_s``.
    """

    request: GangRequest
    sequence: int
    since_s: float  # start of the phase, or last update of the account
    phase: JobPhase = JobPhase.WAITING
    level: int = 0
    attained_s: float = 0.0
    waited_s: float = 0.0  # before since_s
    is_overdue: bool = False  # it has waited too long, and is not preempted
    placement: Placement = ()  # the placement that is promised to it
    used: Placement = ()  # the placement that it occupies, until it has released it
    is_cancelled: bool = False
    not_before_s: float = 0.0  # after an incomplete allocation, it is not tried again before this time
    failed_fills: int = 0
    preemptions: int = 0
    started_s: float = 0.0  # time at which it last began to run

    @property
    def rank(self) -> Rank:
        """Rank of the job, smaller first; equal for all jobs that have waited too long."""
        return OVERDUE if self.is_overdue else (1, -self.request.priority, self.level)

    @property
    def holds(self) -> Resources:
        """Resources that are promised to the job."""
        return self.request.gang.of(self.placement) if self.placement else Resources()

    @property
    def gpus_counted(self) -> float:
        """GPU-seconds of attained service per second; for a job without GPUs, a fraction that depends on its cores."""
        held = self.holds if self.placement else self.request.gang.least
        return float(held.gpus) if held.gpus else max(held.cores, 1) / CORES_LIKE_A_GPU

    def waits_s(self, now: float) -> float:
        """Return the total waiting time of the job, in seconds."""
        return self.waited_s + (now - self.since_s if self.phase in (JobPhase.WAITING, JobPhase.PLACED) else 0.0)

    def count(self, now: float, policy: Policy) -> None:
        """Update the account of the job, and with it its level, up to ``now``."""
        passed = max(0.0, now - self.since_s)
        if self.phase == JobPhase.RUNNING:
            self.attained_s += passed * self.gpus_counted
            self.level = policy.level(self.attained_s)
        elif self.phase in (JobPhase.WAITING, JobPhase.PLACED):
            self.waited_s += passed
        self.since_s = now

    def update_level(self, now: float, policy: Policy) -> None:
        """Update the account of a job at the time at which its level changes.

        A difference due to rounding counts as attained; otherwise an interval below the resolution of the clock would
        never end.
        """
        self.count(now, policy)
        while self.falls_at_s(policy) <= now:
            self.attained_s = policy.next_level_s(self.attained_s)
            self.level = policy.level(self.attained_s)

    def falls_at_s(self, policy: Policy) -> float:
        """Return the time at which the level of a job changes if it continues to run."""
        return self.since_s + (policy.next_level_s(self.attained_s) - self.attained_s) / self.gpus_counted
