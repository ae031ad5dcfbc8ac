"""What is kept for a job that has been passed for long enough, and who may pass it all the same (EASY, Lifka, 1995).

A job that may be preempted for the one that waits counts as over when its protection is: room is kept from then on, and
who passes has to be over, or without protection, by then. Else short jobs that are protected in turn would keep a large
gang waiting for ever.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from operator import itemgetter

import numpy as np

from hopsml.service.scheduler.job import JobPhase, QueuedJob
from hopsml.service.scheduler.nodes import Array, Nodes
from hopsml.service.scheduler.policy import Policy
from hopsml.service.scheduler.resources import GangShape, Placement

_AGAIN = 1.5


@dataclass
class Hold:
    """``starts_s``: when there will be room for ``job``, infinite where nobody knows; ``spare``: what it leaves then.

    ``refused``: gangs for which there is not enough to spare; it does not become more.
    """

    job: QueuedJob
    starts_s: float
    placement: Placement
    spare: Array
    refused: set[GangShape] = field(default_factory=set)

    def lets_pass(self, other: QueuedJob, now: float, policy: Policy) -> bool:
        """Whether another that starts now would be out of the way when there will be room for this one."""
        ends_s = now + min(
            other.request.expected_s, policy.least_run_s if makes_way(other, self.job, policy) else math.inf
        )
        return math.isfinite(ends_s) and ends_s <= self.starts_s

    def leaves_room(self, nodes: Nodes, other: QueuedJob) -> Placement | None:
        """Where another may go for as long as it likes: it takes of what is spare."""
        if other.request.gang in self.refused:
            return None
        found = nodes.place(other.request.gang, np.minimum(self.spare, nodes.copy()), least=True)
        if found is not None:
            nodes.give(self.spare, other.request.gang, found, -1)
        else:
            self.refused.add(other.request.gang)
        return found


def makes_way(other: QueuedJob, job: QueuedJob, policy: Policy, lenders: Collection[str] = ()) -> bool:
    """Whether another one may be preempted for ``job``, once it has run long enough for that."""
    if other.is_overdue or not other.request.preemptible:
        return False
    if other.request.queue == job.request.queue:
        return policy.preempts and other.rank > job.rank
    return other.request.queue in lenders


def expected_end_s(job: QueuedJob, now: float) -> float:
    """When a job that runs, or is about to, will end. One that has run longer than it said takes half as long again, and
    so on.

    That does not move while time passes: else room that is kept would be kept elsewhere whenever anybody looks.
    """
    began_s = job.started_s if job.phase == JobPhase.RUNNING else now
    takes_s = max(job.request.expected_s, 1.0)
    if began_s + takes_s > now:
        return began_s + takes_s
    takes_s *= _AGAIN ** math.ceil(math.log((now - began_s) / takes_s, _AGAIN))
    end = began_s + takes_s
    return end if end > now else began_s + takes_s * _AGAIN


def make(
    job: QueuedJob,
    nodes: Nodes,
    running: Iterable[QueuedJob],
    now: float,
    policy: Policy,
    lenders: Collection[str] = (),
) -> Hold | None:
    """Keep room for ``job``; None where there would be none if all others ended.

    ``running``: who has a place, in the order in which they were started. ``lenders``: queues that give back to the job's
    queue what is guaranteed to it. They may have to give less by the time they are asked: with them ``starts_s`` is no
    promise, but the earliest that may be.
    """
    gang, trial, gained = job.request.gang, nodes.copy(), nodes.free()
    found, starts_s = nodes.place(gang, trial, least=True), now
    for ends_s, other in _by_end(job, running, now, policy, lenders) if found is None else ():
        nodes.give(trial, other.request.gang, other.placement)
        gained = gained.plus(other.holds)
        starts_s = ends_s
        found = nodes.place(gang, trial, least=True) if gang.least.within(gained) else None
        if found is not None:
            break
    if found is None:
        return None
    nodes.give(trial, gang, found, -1)
    spare = np.minimum(trial, nodes.copy())
    if starts_s == math.inf:  # others may end first than those that were thought of: its nodes are kept whole
        spare[[nodes.rows[name] for part in found for name in part]] = 0
    return Hold(job, starts_s, found, spare)


def _by_end(
    job: QueuedJob, running: Iterable[QueuedJob], now: float, policy: Policy, lenders: Collection[str]
) -> Iterator[tuple[float, QueuedJob]]:
    """When each ends, or may be preempted for ``job``; those of which nobody knows come last, the oldest first."""
    known: list[tuple[float, QueuedJob]] = []
    unknown: list[QueuedJob] = []
    for other in running:
        end = expected_end_s(other, now)
        if makes_way(other, job, policy, lenders):
            began_s = other.started_s if other.phase == JobPhase.RUNNING else now
            end = min(end, max(now, began_s + policy.least_run_s))
        if end < math.inf:
            known.append((end, other))
        else:
            unknown.append(other)
    yield from sorted(known, key=itemgetter(0))
    yield from ((math.inf, other) for other in unknown)
