"""One job as the scheduler knows it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from hopsml.service.scheduler.policy import CORES_LIKE_A_GPU, GangRequest, Policy
from hopsml.service.scheduler.resources import Placement, Resources
from hopsml.states import Lifecycle

# Who goes first, in a queue: (0 for who has waited too long, minus the priority, level).
Rank = tuple[int, int, int]
OVERDUE: Rank = (0, 0, 0)


class JobPhase(StrEnum):
    """PLACED: its room is promised and not yet given back by others. ENDING: it has to give its own back."""

    WAITING = Lifecycle.WAITING.value
    PLACED = "PLACED"
    RUNNING = Lifecycle.RUNNING.value
    ENDING = "ENDING"


@dataclass(slots=True)
class QueuedJob:
    """Times are seconds of the caller's clock. ``attained_s`` are GPU-seconds, counted up to ``since_s`` while it runs."""

    request: GangRequest
    sequence: int
    since_s: float  # of its phase
    phase: JobPhase = JobPhase.WAITING
    level: int = 0
    attained_s: float = 0.0
    waited_s: float = 0.0  # before since_s
    is_overdue: bool = False  # it has waited too long, and is not made to wait again
    placement: Placement = ()  # what is promised to it
    used: Placement = ()  # what it has, until it has given it back
    is_cancelled: bool = False
    not_before_s: float = 0.0  # its last gang was not filled: it is not tried again before
    failed_fills: int = 0
    preemptions: int = 0
    started_s: float = 0.0  # when it last began to run

    @property
    def rank(self) -> Rank:
        """Smaller goes first; of those that have waited too long all have the same."""
        return OVERDUE if self.is_overdue else (1, -self.request.priority, self.level)

    @property
    def holds(self) -> Resources:
        """What is promised to it."""
        return self.request.gang.of(self.placement) if self.placement else Resources()

    @property
    def gpus_counted(self) -> float:
        """GPU-seconds that a second of it counts for; of one without GPUs, a fraction for its cores."""
        held = self.holds if self.placement else self.request.gang.least
        return float(held.gpus) if held.gpus else max(held.cores, 1) / CORES_LIKE_A_GPU

    def waits_s(self, now: float) -> float:
        """How long it has waited in all."""
        return self.waited_s + (now - self.since_s if self.phase in (JobPhase.WAITING, JobPhase.PLACED) else 0.0)

    def count(self, now: float, policy: Policy) -> None:
        """Bring its account up to now, and its level with it."""
        passed = max(0.0, now - self.since_s)
        if self.phase == JobPhase.RUNNING:
            self.attained_s += passed * self.gpus_counted
            self.level = policy.level(self.attained_s)
        elif self.phase in (JobPhase.WAITING, JobPhase.PLACED):
            self.waited_s += passed
        self.since_s = now

    def fall(self, now: float, policy: Policy) -> None:
        """Bring its account up to now where its level changes now.

        What it lacks by a rounding error counts as attained: less than the clock can tell would never be over.
        """
        self.count(now, policy)
        while self.falls_at_s(policy) <= now:
            self.attained_s = policy.next_level_s(self.attained_s)
            self.level = policy.level(self.attained_s)

    def falls_at_s(self, policy: Policy) -> float:
        """When its level changes, if it goes on running."""
        return self.since_s + (policy.next_level_s(self.attained_s) - self.attained_s) / self.gpus_counted
