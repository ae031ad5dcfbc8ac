"""How nodes and queues stand, for people who look: who is where, with how much, and what is left. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from hopsml.service.scheduler.job import JobPhase, QueuedJob
from hopsml.service.scheduler.policy import Queue
from hopsml.service.scheduler.resources import NOTHING, Placement, Resources
from hopsml.service.scheduler.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class JobOnNode:
    """What a job has of a node: what it uses, or what is promised to it until others have left."""

    job_id: str
    owner: str
    uses: Resources


@dataclass(frozen=True, slots=True)
class NodeStanding:
    """``free``: what is promised to nobody; ``others``: what other tenants of the cluster use."""

    name: str
    label: str
    capacity: Resources
    free: Resources
    others: Resources
    jobs: tuple[JobOnNode, ...]


@dataclass(frozen=True, slots=True)
class QueueStanding:
    """``has``: what is promised to its jobs. A job for which others have still to leave waits."""

    queue: Queue
    has: Resources
    running: int
    waiting: int


def nodes(scheduler: Scheduler) -> list[NodeStanding]:
    """Each node that there is, and each that is gone while a job still counts as there; by name."""
    jobs = _by_node(scheduler)
    found = []
    for name in sorted(scheduler.nodes.rows):
        account = scheduler.nodes.of(name)
        if account.is_open or name in jobs:
            found.append(
                NodeStanding(
                    name, account.label, account.capacity, account.free, account.others, tuple(jobs.get(name, ()))
                )
            )
    return found


def queues(scheduler: Scheduler) -> list[QueueStanding]:
    """Each queue, in the order in which they were configured."""
    phases: dict[str, list[JobPhase]] = {name: [] for name in scheduler.queues}
    for job in scheduler.jobs.values():
        phases[job.request.queue].append(job.phase)
    waits = (JobPhase.WAITING, JobPhase.PLACED)
    return [
        QueueStanding(
            queue,
            scheduler.promised[name],
            running=sum(phase not in waits for phase in phases[name]),
            waiting=sum(phase in waits for phase in phases[name]),
        )
        for name, queue in scheduler.queues.items()
    ]


def _by_node(scheduler: Scheduler) -> dict[str, list[JobOnNode]]:
    found: dict[str, list[JobOnNode]] = {}
    for job in sorted(scheduler.jobs.values(), key=lambda one: one.sequence):
        for node, amount in uses(job, job.used or job.placement).items():
            found.setdefault(node, []).append(JobOnNode(job.request.job_id, job.request.user, amount))
    return found


def uses(job: QueuedJob, placement: Placement) -> dict[str, Resources]:
    """Of each node what a job has there, where it is placed so."""
    found: dict[str, Resources] = {}
    for part, placed in zip(job.request.gang.parts, placement, strict=False):
        for node, count in placed.items():
            found[node] = found.get(node, NOTHING).plus(part.each.times(count))
    return found
