"""Demand for additional nodes: the gangs that wait and would run if there were more room."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hopsml.service.scheduler.nodes import Nodes
from hopsml.service.scheduler.resources import GangShape, Placement
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


def of(scheduler: Scheduler, now: float) -> Demand:
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
