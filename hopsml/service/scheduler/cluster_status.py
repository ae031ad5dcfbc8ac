"""Status of the cluster: its nodes and queues for display, and the demand for additional nodes. Pure functions."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hopsml.service.scheduler.job import JobPhase, QueuedJob
from hopsml.service.scheduler.nodes import Nodes
from hopsml.service.scheduler.resources import NOTHING, GangShape, Placement, Queue, Resources
from hopsml.service.scheduler.scheduler import Scheduler

MOST = 1000  # maximum number of gangs to return: more nodes are added when these have been served


@dataclass(frozen=True, slots=True)
class GangEnd:
    """Expected end of a running gang, and the placement that it releases then."""

    at_s: float
    gang: GangShape
    placement: Placement


@dataclass(frozen=True, slots=True)
class Demand:
    """Input of the autoscaler: waiting gangs, nodes and expected ends.

    Attributes:
        gangs: (job ID, gang), in the order in which they would be placed.
        nodes: Copy of the current nodes.
        ends: Expected ends of running gangs.
    """

    gangs: tuple[tuple[str, GangShape], ...]
    nodes: Nodes
    ends: tuple[GangEnd, ...] = ()

    @classmethod
    def nothing(cls) -> Demand:
        """Return a demand without gangs and without nodes."""
        return cls((), Nodes())


def demand_of(scheduler: Scheduler, now: float) -> Demand:
    """Return the gangs that wait for room only.

    Gangs beyond their queue's limit, and gangs that are paused after an incomplete allocation, are not included.

    Args:
        scheduler: Scheduler with the jobs.
        now: Time in seconds of the caller's clock.
    """
    capacity, promised = scheduler.nodes.capacity(), dict(scheduler.promised)
    waiting = {name: iter(lines) for name, lines in scheduler.waiting.items() if len(lines)}
    gangs: list[tuple[str, GangShape]] = []
    while waiting and len(gangs) < MOST:
        name = min(waiting, key=lambda name: (promised[name].share_of(capacity) / scheduler.queues[name].weight, name))
        job = next(waiting[name], None)
        if job is None:
            del waiting[name]
            continue
        had = promised[name].plus(job.request.gang.least)
        limit = scheduler.queues[name].limit
        if (
            job.not_before_s > now
            or not scheduler.is_within_limits(job)
            or (limit is not None and not had.within(limit))
        ):
            continue
        promised[name] = had
        gangs.append((job.request.job_id, job.request.gang))
    return Demand(tuple(gangs), scheduler.nodes.clone(), tuple(_ends(scheduler, now)))


def _ends(scheduler: Scheduler, now: float) -> list[GangEnd]:
    """Return the expected ends of jobs that are within their estimate; the ends of other jobs are unknown."""
    ends = [
        GangEnd(job.started_s + job.request.expected_s, job.request.gang, job.placement)
        for job in scheduler.started.values()
    ]
    return [end for end in ends if now < end.at_s < math.inf]


@dataclass(frozen=True, slots=True)
class JobOnNode:
    """Resources of a job on a node: in use, or promised until other jobs have released them."""

    job_id: str
    owner: str
    uses: Resources


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """Status of a node.

    Attributes:
        name: Name of the node.
        label: Label of the node.
        capacity: Resources of the node.
        free: Resources that are not promised to any job.
        others: Resources that other tenants of the cluster use.
        jobs: Jobs on the node.
    """

    name: str
    label: str
    capacity: Resources
    free: Resources
    others: Resources
    jobs: tuple[JobOnNode, ...]


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """Status of a queue.

    Attributes:
        queue: Settings of the queue.
        has: Resources promised to its jobs.
        running: Number of running jobs.
        waiting: Number of waiting jobs, including those whose room other jobs have not released yet.
    """

    queue: Queue
    has: Resources
    running: int
    waiting: int


def node_statuses(scheduler: Scheduler) -> list[NodeStatus]:
    """Return the status of each open node, and of each other node on which a job is still counted, by name."""
    jobs = _by_node(scheduler)
    found = []
    for name in sorted(scheduler.nodes.rows):
        account = scheduler.nodes.of(name)
        if account.is_open or name in jobs:
            found.append(
                NodeStatus(
                    name, account.label, account.capacity, account.free, account.others, tuple(jobs.get(name, ()))
                )
            )
    return found


def queue_statuses(scheduler: Scheduler) -> list[QueueStatus]:
    """Return the status of each queue, in the order of their configuration."""
    phases: dict[str, list[JobPhase]] = {name: [] for name in scheduler.queues}
    for job in scheduler.jobs.values():
        phases[job.request.queue].append(job.phase)
    waits = (JobPhase.WAITING, JobPhase.PLACED)
    return [
        QueueStatus(
            queue,
            scheduler.promised[name],
            running=sum(phase not in waits for phase in phases[name]),
            waiting=sum(phase in waits for phase in phases[name]),
        )
        for name, queue in scheduler.queues.items()
    ]


def _by_node(scheduler: Scheduler) -> dict[str, list[JobOnNode]]:
    """Return node -> jobs on it, in the order of their submission."""
    found: dict[str, list[JobOnNode]] = {}
    for job in sorted(scheduler.jobs.values(), key=lambda one: one.sequence):
        for node, amount in resources_by_node(job, job.used or job.placement).items():
            found.setdefault(node, []).append(JobOnNode(job.request.job_id, job.request.user, amount))
    return found


def resources_by_node(job: QueuedJob, placement: Placement) -> dict[str, Resources]:
    """Return node -> resources of a job in a placement."""
    found: dict[str, Resources] = {}
    for part, placed in zip(job.request.gang.parts, placement, strict=False):
        for node, count in placed.items():
            found[node] = found.get(node, NOTHING).plus(part.each.times(count))
    return found
