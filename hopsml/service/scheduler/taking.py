"""Choice of room for a job: slots taken from running jobs of lower rank, and reservations (EASY, Lifka, 1995).

Elastic surplus is taken first. A job that was overtaken for too long gets a reservation. It may still be overtaken by
jobs that do not delay it. A job that may be preempted for the waiting one counts as ended when its protected time ends:
room is reserved from then on, and an overtaking job must have ended, or have become preemptible, by then. Otherwise a
succession of short protected jobs would delay a large gang forever.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from operator import itemgetter

import numpy as np

from hopsml.service.scheduler.job import JobPhase, QueuedJob
from hopsml.service.scheduler.nodes import Array, Nodes
from hopsml.service.scheduler.resources import GangShape, Placement, Policy, Resources, total

_AGAIN = 1.5


@dataclass
class Hold:
    """Room that is reserved for a job that waits.

    Attributes:
        job: The waiting job.
        starts_s: Time at which there will be room for the job; infinite if unknown.
        placement: Expected placement of the job.
        spare: Free resources by node that the job will leave unused.
        refused: Gangs that do not fit into ``spare``, which never grows.
    """

    job: QueuedJob
    starts_s: float
    placement: Placement
    spare: Array
    refused: set[GangShape] = field(default_factory=set)

    def lets_pass(self, other: QueuedJob, now: float, policy: Policy) -> bool:
        """Return True if another job that starts now will have ended, or be preemptible, at ``starts_s``."""
        ends_s = now + min(
            other.request.expected_s, policy.least_run_s if may_be_preempted(other, self.job, policy) else math.inf
        )
        return math.isfinite(ends_s) and ends_s <= self.starts_s

    def place_in_spare_room(self, nodes: Nodes, other: QueuedJob) -> Placement | None:
        """Place another job, of any duration, in the spare room, which becomes smaller; None if it does not fit."""
        if other.request.gang in self.refused:
            return None
        found = nodes.place(other.request.gang, np.minimum(self.spare, nodes.copy()), least=True)
        if found is not None:
            nodes.add_placement(self.spare, other.request.gang, found, -1)
        else:
            self.refused.add(other.request.gang)
        return found


def may_be_preempted(other: QueuedJob, job: QueuedJob, policy: Policy, lenders: Collection[str] = ()) -> bool:
    """Return True if the rules permit preempting ``other`` for ``job``, once its protected time after its start is over.

    Args:
        other: The job to be preempted.
        job: The waiting job.
        policy: Policy of the scheduler.
        lenders: Queues that must return guaranteed resources to the queue of ``job``.
    """
    if other.is_overdue or not other.request.preemptible:
        return False
    if other.request.queue == job.request.queue:
        return policy.preempts and other.rank > job.rank
    return other.request.queue in lenders


def expected_end_s(job: QueuedJob, now: float) -> float:
    """Return the time at which a running or placed job is expected to end.

    For a job that exceeds its estimate, the estimate is multiplied by 1.5 as often as necessary. The result is constant
    over time between these steps; otherwise reserved room would move with every query.
    """
    began_s = job.started_s if job.phase == JobPhase.RUNNING else now
    takes_s = max(job.request.expected_s, 1.0)
    if began_s + takes_s > now:
        return began_s + takes_s
    takes_s *= _AGAIN ** math.ceil(math.log((now - began_s) / takes_s, _AGAIN))
    end = began_s + takes_s
    return end if end > now else began_s + takes_s * _AGAIN


def make_hold(
    job: QueuedJob,
    nodes: Nodes,
    running: Iterable[QueuedJob],
    now: float,
    policy: Policy,
    lenders: Collection[str] = (),
) -> Hold | None:
    """Reserve room for ``job`` at the earliest time at which it will fit.

    Args:
        job: The waiting job.
        nodes: Current nodes.
        running: Placed and running jobs, in the order in which they were started.
        now: Time in seconds of the caller's clock.
        policy: Policy of the scheduler.
        lenders: Queues that must return guaranteed resources to the job's queue. They may have less to return by the
            time it is reclaimed: with them ``starts_s`` is not a promise but a lower bound.

    Returns:
        None if the job would not fit even if all others ended.
    """
    gang, trial, gained = job.request.gang, nodes.copy(), nodes.free()
    found, starts_s = nodes.place(gang, trial, least=True), now
    for ends_s, other in _by_end(job, running, now, policy, lenders) if found is None else ():
        nodes.add_placement(trial, other.request.gang, other.placement)
        gained = gained.plus(other.holds)
        starts_s = ends_s
        found = nodes.place(gang, trial, least=True) if gang.least.within(gained) else None
        if found is not None:
            break
    if found is None:
        return None
    nodes.add_placement(trial, gang, found, -1)
    spare = np.minimum(trial, nodes.copy())
    if starts_s == math.inf:  # other jobs may end earlier than the ones considered: the nodes are reserved as a whole
        spare[[nodes.rows[name] for part in found for name in part]] = 0
    return Hold(job, starts_s, found, spare)


def _by_end(
    job: QueuedJob, running: Iterable[QueuedJob], now: float, policy: Policy, lenders: Collection[str]
) -> Iterator[tuple[float, QueuedJob]]:
    """Yield (time, job) in the order in which jobs end or may be preempted for ``job``.

    Jobs of unknown end are last, in the order of ``running``, with an infinite time.
    """
    known: list[tuple[float, QueuedJob]] = []
    unknown: list[QueuedJob] = []
    for other in running:
        end = expected_end_s(other, now)
        if may_be_preempted(other, job, policy, lenders):
            began_s = other.started_s if other.phase == JobPhase.RUNNING else now
            end = min(end, max(now, began_s + policy.least_run_s))
        if end < math.inf:
            known.append((end, other))
        else:
            unknown.append(other)
    yield from sorted(known, key=itemgetter(0))
    yield from ((math.inf, other) for other in unknown)


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


def find_taking(job: QueuedJob, nodes: Nodes, elastic: list[QueuedJob], ended: Iterator[QueuedJob]) -> Taking | None:
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
        for freed in releasable_slots(job):
            now = remaining_placement(now, freed)
            left[job.request.job_id] = now
            yield _Step(job, freed, whole=False)
    for job in ended:
        yield _Step(job, left.get(job.request.job_id, job.placement), whole=True)


def releasable_slots(job: QueuedJob) -> Iterator[Placement]:
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


def remaining_placement(placement: Placement, freed: Placement) -> Placement:
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
            left[job_id] = remaining_placement(left.get(job_id, step.job.placement), step.freed)
    return Taking(placement, left, ended)


def resources_beyond_minimum(jobs: list[QueuedJob]) -> Resources:
    """Return the resources that jobs hold beyond their minimum."""
    return total(job.holds.minus(job.request.gang.least) for job in jobs)


def common_slots(one: Placement, other: Placement) -> Placement:
    """Return the slots that are in both placements."""
    return tuple(
        {node: min(count, there[node]) for node, count in nodes.items() if node in there}
        for nodes, there in zip(one, other, strict=True)
    )


def grown_placement(job: QueuedJob, gang: GangShape, nodes: Nodes) -> Placement | None:
    """Return an elastic job's placement grown towards ``gang`` by free room; None if it cannot grow."""
    slots = list(job.placement)
    trial = nodes.copy()
    for index, part in enumerate(gang.parts):
        missing = part.count - sum(slots[index].values())
        if missing <= 0:
            continue
        more = nodes.place(GangShape((replace(part, count=missing, least=1),)), trial)
        if more is None:
            continue
        nodes.add_placement(trial, GangShape((part,)), more, -1)
        merged = dict(slots[index])
        for node, count in more[0].items():
            merged[node] = merged.get(node, 0) + count
        slots[index] = merged
    return tuple(slots) if tuple(slots) != job.placement else None
