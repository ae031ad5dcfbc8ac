"""Choice of running jobs from which slots are taken for a job of higher rank, elastic surplus first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hopsml.service.scheduler.job import QueuedJob
from hopsml.service.scheduler.nodes import Nodes
from hopsml.service.scheduler.resources import Placement, Resources, total


@dataclass(frozen=True)
class Taking:
    """Slots that are taken from running jobs for another one.

    Attributes:
        placement: Placement of the job that receives the slots.
        left: ID of each job that shrinks -> its remaining placement.
        ended: IDs of jobs that are ended.
    """

    placement: Placement
    left: dict[str, Placement]
    ended: tuple[str, ...]


@dataclass(frozen=True)
class _Step:
    """Slots taken from one job.

    Attributes:
        job: The job.
        freed: The slots.
        whole: True if these are all of the job's remaining slots.
    """

    job: QueuedJob
    freed: Placement
    whole: bool


def find(job: QueuedJob, nodes: Nodes, elastic: list[QueuedJob], ended: Iterator[QueuedJob]) -> Taking | None:
    """Find the jobs from which to take slots; None if all of them are not enough.

    Jobs that turn out not to be needed are spared.

    Args:
        job: Job that receives the slots.
        nodes: Current nodes.
        elastic: Elastic jobs whose surplus may be taken, in the order of taking.
        ended: Jobs that may be ended, in the order of taking.
    """
    gang, trial = job.request.gang, nodes.copy()
    gained, steps = nodes.free(), []
    found: Placement | None = None
    for step in _steps(elastic, ended):
        nodes.add_placement(trial, step.job.request.gang, step.freed)
        gained = gained.plus(step.job.request.gang.of(step.freed))
        steps.append(step)
        if gang.least.within(gained):
            found = nodes.place(gang, trial, least=True)
            if found is not None:
                break
    if found is None:
        return None
    needed = steps[-1:]
    for step in reversed(steps[:-1]):
        nodes.add_placement(trial, step.job.request.gang, step.freed, -1)
        without = nodes.place(gang, trial, least=True)
        if without is not None:
            found = without
        else:
            nodes.add_placement(trial, step.job.request.gang, step.freed)
            needed.append(step)
    return _outcome(found, needed)


def _steps(elastic: list[QueuedJob], ended: Iterator[QueuedJob]) -> Iterator[_Step]:
    """Yield the surplus of elastic jobs slot by slot, then whole jobs."""
    left: dict[str, Placement] = {}
    for job in elastic:
        now = job.placement
        for freed in surplus(job):
            now = without(now, freed)
            left[job.request.job_id] = now
            yield _Step(job, freed, whole=False)
    for job in ended:
        yield _Step(job, left.get(job.request.job_id, job.placement), whole=True)


def surplus(job: QueuedJob) -> Iterator[Placement]:
    """Yield placements of one slot each that an elastic job can release.

    Slots on the nodes with the fewest slots of the job come first, so that nodes become empty.
    """
    gang = job.request.gang
    for index, part in enumerate(gang.parts):
        nodes = dict(job.placement[index])
        for _ in range(sum(nodes.values()) - part.at_least):
            node = min(nodes, key=lambda name: (nodes[name], name))
            nodes[node] -= 1
            if not nodes[node]:
                del nodes[node]
            yield tuple({node: 1} if other == index else {} for other in range(len(gang.parts)))


def without(placement: Placement, freed: Placement) -> Placement:
    """Return the remainder of a placement without the freed slots."""
    return tuple(
        {node: count - gone.get(node, 0) for node, count in nodes.items() if count > gone.get(node, 0)}
        for nodes, gone in zip(placement, freed, strict=True)
    )


def _outcome(placement: Placement, steps: list[_Step]) -> Taking:
    """Combine steps into the result."""
    ended = tuple(step.job.request.job_id for step in steps if step.whole)
    left: dict[str, Placement] = {}
    for step in steps:
        job_id = step.job.request.job_id
        if job_id not in ended:
            left[job_id] = without(left.get(job_id, step.job.placement), step.freed)
    return Taking(placement, left, ended)


def held(jobs: list[QueuedJob]) -> Resources:
    """Return the resources that jobs hold beyond their minimum."""
    return total(job.holds.minus(job.request.gang.least) for job in jobs)
