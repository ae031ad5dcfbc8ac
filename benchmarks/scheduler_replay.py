"""Replay of a log's jobs through the scheduler, at the speed of the processor, to measure waiting times.

Time is the log's. A preempted job releases its room ``release_s`` after the preemption, and after its restart needs
``restart_s`` to regain its progress, which its slots spend in vain.
"""

from __future__ import annotations

import csv
import gzip
import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

from hopsml.service.scheduler.resources import (
    DEFAULT_QUEUE,
    GangRequest,
    GangShape,
    Policy,
    Queue,
    Resources,
    SlotGroup,
)
from hopsml.service.scheduler.scheduler import Action, PreemptJob, ResizeJob, Scheduler


@dataclass(frozen=True, slots=True)
class LoggedJob:
    """Job of a cluster's log.

    Attributes:
        job_id: ID of the job.
        submit_s: Time of submission, in seconds.
        gpus: Number of GPUs.
        duration_s: Running time with all its GPUs, in seconds.
        queue: Name of the queue.
        least: Number of GPUs with which the job continues, proportionally slower; 0 for ``gpus``.
    """

    job_id: str
    submit_s: float
    gpus: int
    duration_s: float
    queue: str = DEFAULT_QUEUE
    least: int = 0


def read(
    path: Path, *, queues: bool = False, first_s: float = 0.0, last_s: float = float("inf")
) -> Iterator[LoggedJob]:
    """Read the jobs with ``first_s <= submit_s < last_s`` from a log.

    Args:
        path: CSV file, gzipped or not, with columns ``job_id, submit_s, gpus, duration_s, queue``.
        queues: True to use the queues of the log; otherwise all jobs are in the default queue.
        first_s: Earliest time of submission, in seconds.
        last_s: Time of submission at which to end, in seconds.
    """
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        for row in csv.DictReader(lines):
            at = float(row["submit_s"])
            if first_s <= at < last_s:
                queue = row["queue"] if queues else DEFAULT_QUEUE
                yield LoggedJob(row["job_id"], at, int(row["gpus"]), max(1.0, float(row["duration_s"])), queue)


@dataclass
class ReplayOutcome:
    """Result of a replay.

    Times are in seconds. ``waits_s`` maps each job to the time that it took beyond its duration.
    """

    waits_s: dict[str, float] = field(default_factory=dict)
    gpus: dict[str, int] = field(default_factory=dict)
    preemptions: int = 0
    events: int = 0

    @property
    def mean_s(self) -> float:
        """Mean waiting time of all jobs, in seconds."""
        return sum(self.waits_s.values()) / max(1, len(self.waits_s))

    @property
    def longest_s(self) -> float:
        """Longest waiting time of any job, in seconds."""
        return max(self.waits_s.values(), default=0.0)

    def quantile_s(self, share: float) -> float:
        """Return the waiting time that this share of the jobs does not exceed."""
        ordered = sorted(self.waits_s.values())
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0

    def mean_of_large_s(self, gpus: int) -> float:
        """Return the mean waiting time of jobs with at least this number of GPUs."""
        large = [wait for job, wait in self.waits_s.items() if self.gpus[job] >= gpus]
        return sum(large) / max(1, len(large))


class EventKind(IntEnum):
    """Kinds of events in a replay."""

    SUBMIT, END, RELEASE = range(3)


@dataclass(slots=True)
class _Life:
    """Progress of a job in a replay.

    Attributes:
        job: The job.
        left_s: Remaining duration with all its GPUs, including the cost of restarts.
        pace: Share of its GPUs that the job has.
        since_s: Time of the last update.
        ends: Number of the expected end that is current.
    """

    job: LoggedJob
    left_s: float
    pace: float = 0.0
    since_s: float = 0.0
    ends: int = 0

    def goes_on(self, now: float, slots: int) -> tuple[float, EventKind, str, int]:
        """Continue with this number of slots, and return the event of the expected end."""
        self.left_s = max(0.0, self.left_s - (now - self.since_s) * self.pace)
        self.since_s, self.pace = now, slots / self.job.gpus
        self.ends += 1
        at = now + self.left_s / self.pace if self.pace else float("inf")
        return (at, EventKind.END, self.job.job_id, self.ends)


class Replay:
    """Replay of one log with one policy: future events, and the scheduler that receives them."""

    def __init__(self, scheduler: Scheduler, jobs: Iterable[LoggedJob], release_s: float, restart_s: float) -> None:
        """Initialize a replay with the submissions of all jobs as events.

        Args:
            scheduler: Scheduler to drive.
            jobs: Jobs of the log.
            release_s: Time from a preemption until the job's room is free, in seconds.
            restart_s: Time that a restart costs, in seconds.
        """
        self.outcome = ReplayOutcome()
        self._scheduler = scheduler
        self._release_s, self._restart_s = release_s, restart_s
        self._lives = {job.job_id: _Life(job, job.duration_s) for job in jobs}
        self._gangs: dict[tuple[int, int], GangShape] = {}  # shared by equal jobs, because the scheduler compares gangs
        self._events: list[tuple[float, int, EventKind, str, int]] = []
        self._number = 0
        for life in self._lives.values():
            self._foresee((life.job.submit_s, EventKind.SUBMIT, life.job.job_id, 0))

    def run(self) -> ReplayOutcome:
        """Run the replay to the end of the last job."""
        now = 0.0
        while self._events or self._scheduler.due_s(now) < float("inf"):
            due = self._scheduler.due_s(now)
            if not self._events or due < self._events[0][0]:
                now = due
                actions = self._scheduler.tick(now)
            else:
                now, _, kind, job_id, number = heapq.heappop(self._events)
                if kind == EventKind.END and number != self._lives[job_id].ends:
                    continue  # an outdated expectation
                actions = self._happens(kind, self._lives[job_id], now)
            self.outcome.events += 1
            self._carry_out(actions, now)
        return self.outcome

    def _happens(self, kind: EventKind, life: _Life, now: float) -> list[Action]:
        """Report an event to the scheduler, and return its actions."""
        job = life.job
        if kind == EventKind.SUBMIT:
            return self._scheduler.submit(GangRequest(job.job_id, self._gang(job), job.queue), now)
        if kind == EventKind.RELEASE:
            return self._scheduler.released(job.job_id, now)
        self.outcome.waits_s[job.job_id] = now - job.submit_s - job.duration_s
        self.outcome.gpus[job.job_id] = job.gpus
        return self._scheduler.ended(job.job_id, now)

    def _carry_out(self, actions: list[Action], now: float) -> None:
        """Apply the scheduler's actions to the jobs, and add the events that follow."""
        for action in actions:
            life = self._lives[action.job_id]
            if isinstance(action, PreemptJob):
                life.goes_on(now, 0)
                life.left_s += self._restart_s
                self.outcome.preemptions += 1
                self._foresee((now + self._release_s, EventKind.RELEASE, action.job_id, 0))
                continue
            self._foresee(life.goes_on(now, sum(action.placement[0].values())))
            if isinstance(action, ResizeJob):
                self._carry_out(self._scheduler.resized(action.job_id, action.placement, now), now)

    def _gang(self, job: LoggedJob) -> GangShape:
        """Return the gang of a job, shared by equal jobs."""
        key = (job.gpus, job.least)
        if key not in self._gangs:
            self._gangs[key] = GangShape((SlotGroup("workers", job.gpus, Resources(gpus=1), job.least),))
        return self._gangs[key]

    def _foresee(self, event: tuple[float, EventKind, str, int]) -> None:
        """Add a future event, unless its time is infinite."""
        if event[0] < float("inf"):
            self._number += 1
            heapq.heappush(self._events, (event[0], self._number, *event[1:]))


def replay(
    jobs: Iterable[LoggedJob],
    nodes: dict[str, int],
    policy: Policy | None = None,
    *,
    queues: tuple[Queue, ...] = (Queue(),),
    release_s: float = 0.0,
    restart_s: float = 0.0,
) -> ReplayOutcome:
    """Replay a log with a policy, and return the waiting times.

    Args:
        jobs: Jobs of the log.
        nodes: Name of a node -> its GPUs.
        policy: Scheduling policy; default ``Policy()``.
        queues: Queues of the scheduler.
        release_s: Time from a preemption until the job's room is free, in seconds.
        restart_s: Time that a restart costs, in seconds.
    """
    scheduler = Scheduler(policy, queues)
    for name, gpus in nodes.items():
        scheduler.nodes.set_node(name, Resources(gpus=gpus))
    return Replay(scheduler, jobs, release_s, restart_s).run()
