"""Jobs in the scheduler: the state of one, the waiting ones of a queue, and the running ones by rank.

Waiting jobs stand in lines of equal gangs, so that a scheduling pass checks each kind of gang once.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter

from hopsml.core.newer_python import StrEnum
from hopsml.core.states import Lifecycle
from hopsml.service.scheduler.resources import CORES_LIKE_A_GPU, GangRequest, GangShape, Placement, Policy, Resources

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
    def service_per_s(self) -> float:
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
            self.attained_s += passed * self.service_per_s
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
        while self.next_level_at_s(policy) <= now:
            self.attained_s = policy.next_level_s(self.attained_s)
            self.level = policy.level(self.attained_s)

    def next_level_at_s(self, policy: Policy) -> float:
        """Return the time at which the level of a job changes if it continues to run."""
        return self.since_s + (policy.next_level_s(self.attained_s) - self.attained_s) / self.service_per_s


# All jobs of a line have the same rank and gang; they are in the order of their submission.
Key = tuple[Rank, GangShape]
Line = list[QueuedJob]
_sequence = attrgetter("sequence")


class WaitingLines:
    """Waiting jobs of one queue, grouped by their rank (place in the queue's order) and by the shape of their gang."""

    def __init__(self) -> None:
        self._lines: dict[Key, Line] = {}
        self._keys: dict[str, Key] = {}  # ID of a job -> the key under which it was added

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[QueuedJob]:
        """Yield all jobs in the order of rank and submission."""
        jobs = [job for line in self._lines.values() for job in line]
        return iter(sorted(jobs, key=lambda job: (job.rank, job.sequence)))

    def add_job(self, job: QueuedJob) -> None:
        """Add a job at the position of its submission among jobs of its rank."""
        key = (job.rank, job.request.gang)
        self._keys[job.request.job_id] = key
        insort(self._lines.setdefault(key, []), job, key=_sequence)

    def remove(self, job: QueuedJob) -> None:
        """Remove a job that no longer waits, or whose rank is about to change."""
        key = self._keys.pop(job.request.job_id)
        line = self._lines[key]
        del line[bisect_left(line, job.sequence, key=_sequence)]
        if not line:
            del self._lines[key]

    def walk(self) -> Walk:
        """Return a walk through all jobs in order."""
        return Walk(list(self._lines.values()))


class Walk:
    """One pass through a queue: ``job`` is the current job until a method moves to the next one."""

    def __init__(self, lines: list[Line]) -> None:
        self._heap = [(line[0].rank, line[0].sequence, number, 0, line) for number, line in enumerate(lines)]
        heapq.heapify(self._heap)
        self._passed: set[GangShape] = set()

    @property
    def job(self) -> QueuedJob | None:
        """Current job in order; None at the end."""
        while self._heap:
            *_, position, line = self._heap[0]
            if line[position].request.gang not in self._passed:
                return line[position]
            heapq.heappop(self._heap)
        return None

    def taken(self) -> None:
        """Move to the next job, after ``job`` was removed from its line."""
        _, _, number, position, line = heapq.heappop(self._heap)
        self._push(number, position, line)

    def skip(self) -> None:
        """Move to the next job, which may have the same gang."""
        _, _, number, position, line = heapq.heappop(self._heap)
        self._push(number, position + 1, line)

    def pass_over(self) -> None:
        """Skip all jobs with the same gang, whatever their rank: there is no room for it in this pass."""
        *_, position, line = self._heap[0]
        self._passed.add(line[position].request.gang)

    def _push(self, number: int, position: int, line: Line) -> None:
        """Add a line at a position, unless it is at its end."""
        if position < len(line):
            heapq.heappush(self._heap, (line[position].rank, line[position].sequence, number, position, line))


class RunningJobs:
    """Running jobs of one queue, ordered by rank.

    Attributes:
        elastic: Job ID -> job, of jobs that may change their size.
    """

    def __init__(self) -> None:
        self._by_rank: dict[Rank, list[QueuedJob]] = {}
        self._held: dict[Rank, Resources] = {}
        self._entries: dict[str, tuple[Rank, Resources]] = {}
        self.elastic: dict[str, QueuedJob] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def add_job(self, job: QueuedJob) -> None:
        """Add a job that starts to run, or update one whose rank or size changed."""
        self.remove(job)
        entry = (job.rank, job.holds)
        self._entries[job.request.job_id] = entry
        insort(self._by_rank.setdefault(job.rank, []), job, key=_sequence)
        self._held[job.rank] = self._held.get(job.rank, Resources()).plus(entry[1])
        if job.request.changes:
            self.elastic[job.request.job_id] = job

    def remove(self, job: QueuedJob) -> None:
        """Remove a job that no longer runs; nothing happens if it is not in the table."""
        entry = self._entries.pop(job.request.job_id, None)
        if entry is None:
            return
        rank, held = entry
        line = self._by_rank[rank]
        del line[bisect_left(line, job.sequence, key=_sequence)]
        self._held[rank] = self._held[rank].minus(held)
        self.elastic.pop(job.request.job_id, None)
        if not line:
            del self._by_rank[rank], self._held[rank]

    def resources_behind(self, rank: Rank) -> Resources:
        """Return the total resources of jobs behind a rank, which bounds what can be taken for it."""
        result = Resources()
        for other, held in self._held.items():
            if other > rank:
                result = result.plus(held)
        return result

    def behind(self, rank: Rank) -> Iterator[QueuedJob]:
        """Yield the jobs behind a rank, the last one first."""
        for other in sorted((other for other in self._by_rank if other > rank), reverse=True):
            yield from reversed(self._by_rank[other])

    def __iter__(self) -> Iterator[QueuedJob]:
        return (job for line in self._by_rank.values() for job in line)
