"""What is taken from running jobs for one that goes before them: first what elastic ones can do without."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hopsml.service.scheduler.job import QueuedJob
from hopsml.service.scheduler.nodes import Nodes
from hopsml.service.scheduler.resources import Placement, Resources, total


@dataclass(frozen=True)
class Taking:
    """``placement`` of who takes; ``left``: of those that become smaller, what is left to them; ``ended``: in whole."""

    placement: Placement
    left: dict[str, Placement]
    ended: tuple[str, ...]


@dataclass(frozen=True)
class _Step:
    """``freed`` by ``job``; ``whole``: it is all that the job still has."""

    job: QueuedJob
    freed: Placement
    whole: bool


def find(job: QueuedJob, nodes: Nodes, elastic: list[QueuedJob], ended: Iterator[QueuedJob]) -> Taking | None:
    """The jobs from which to take, in the order in which they are to suffer; None where all of it is not enough.

    Those that turn out not to be needed are spared.
    """
    gang, trial = job.request.gang, nodes.copy()
    gained, steps = nodes.free(), []
    found: Placement | None = None
    for step in _steps(elastic, ended):
        nodes.give(trial, step.job.request.gang, step.freed)
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
        nodes.give(trial, step.job.request.gang, step.freed, -1)
        without = nodes.place(gang, trial, least=True)
        if without is not None:
            found = without
        else:
            nodes.give(trial, step.job.request.gang, step.freed)
            needed.append(step)
    return _outcome(found, needed)


def _steps(elastic: list[QueuedJob], ended: Iterator[QueuedJob]) -> Iterator[_Step]:
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
    """Slot for slot what an elastic job could do without, from the nodes on which it has fewest: those become empty."""
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
    """What is left of a placement."""
    return tuple(
        {node: count - gone.get(node, 0) for node, count in nodes.items() if count > gone.get(node, 0)}
        for nodes, gone in zip(placement, freed, strict=True)
    )


def _outcome(placement: Placement, steps: list[_Step]) -> Taking:
    ended = tuple(step.job.request.job_id for step in steps if step.whole)
    left: dict[str, Placement] = {}
    for step in steps:
        job_id = step.job.request.job_id
        if job_id not in ended:
            left[job_id] = without(left.get(job_id, step.job.placement), step.freed)
    return Taking(placement, left, ended)


def held(jobs: list[QueuedJob]) -> Resources:
    """What they have beyond what they cannot do without."""
    return total(job.holds.minus(job.request.gang.least) for job in jobs)
