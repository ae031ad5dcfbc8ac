"""Status of nodes and queues for display: jobs, their resources and free resources. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass

from hopsml.service.scheduler.job import JobPhase, QueuedJob
from hopsml.service.scheduler.policy import Queue
from hopsml.service.scheduler.resources import NOTHING, Placement, Resources
from hopsml.service.scheduler.scheduler import Scheduler


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


def nodes(scheduler: Scheduler) -> list[NodeStatus]:
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


def queues(scheduler: Scheduler) -> list[QueueStatus]:
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
        for node, amount in uses(job, job.used or job.placement).items():
            found.setdefault(node, []).append(JobOnNode(job.request.job_id, job.request.user, amount))
    return found


def uses(job: QueuedJob, placement: Placement) -> dict[str, Resources]:
    """Return node -> resources of a job in a placement."""
    found: dict[str, Resources] = {}
    for part, placed in zip(job.request.gang.parts, placement, strict=False):
        for node, count in placed.items():
            found[node] = found.get(node, NOTHING).plus(part.each.times(count))
    return found
