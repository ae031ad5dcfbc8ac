"""What waits for room and would run if there were more of it; for whoever can add nodes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hopsml.service.scheduler.nodes import Nodes
from hopsml.service.scheduler.resources import GangShape, Placement
from hopsml.service.scheduler.scheduler import Scheduler

MOST = 1000  # gangs that are told: more nodes are added when these have been served


@dataclass(frozen=True, slots=True)
class GangEnd:
    """When a running gang will be over, by its own estimate, and what it then gives back."""

    at_s: float
    gang: GangShape
    placement: Placement


@dataclass(frozen=True, slots=True)
class Demand:
    """``gangs``: (job, what it needs), in the order in which they would be placed. ``nodes``: as they are, a copy."""

    gangs: tuple[tuple[str, GangShape], ...]
    nodes: Nodes
    ends: tuple[GangEnd, ...] = ()

    @classmethod
    def nothing(cls) -> Demand:
        """Nobody waits, and there is nothing."""
        return cls((), Nodes())


def of(scheduler: Scheduler, now: float) -> Demand:
    """Gangs that wait for nothing but room: not those beyond their queue's limit, nor those that are put off."""
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
    """Of those that are within their estimate: of others nobody knows."""
    ends = [
        GangEnd(job.started_s + job.request.expected_s, job.request.gang, job.placement)
        for job in scheduler.started.values()
    ]
    return [end for end in ends if now < end.at_s < math.inf]
