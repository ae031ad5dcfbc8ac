"""What is kept for a job that has been passed for long enough, and who may pass it all the same (EASY, Lifka, 1995)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from hopsml.service.scheduler.job import QueuedJob
from hopsml.service.scheduler.nodes import Array, Nodes
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

    def leaves_room(self, nodes: Nodes, other: QueuedJob, most: GangShape, now: float) -> Placement | None:
        """Where another may go without delaying this one: one that ends in time, or that takes what is spare.

        ``most``: its gang, as large as its queue lets it be.
        """
        ends_s = now + other.request.expected_s
        if math.isfinite(ends_s) and ends_s <= self.starts_s:
            return nodes.place(most)
        if other.request.gang in self.refused:
            return None
        found = nodes.place(other.request.gang, np.minimum(self.spare, nodes.copy()), least=True)
        if found is not None:
            nodes.give(self.spare, other.request.gang, found, -1)
        else:
            self.refused.add(other.request.gang)
        return found


def expected_end_s(job: QueuedJob, now: float) -> float:
    """When a running job will end. One that has run longer than it said takes half as long again, and so on.

    That does not move while time passes: else room that is kept would be kept elsewhere whenever anybody looks.
    """
    takes_s, ran_s = max(job.request.expected_s, 1.0), now - job.started_s
    if takes_s <= ran_s:
        takes_s *= _AGAIN ** math.ceil(math.log(ran_s / takes_s, _AGAIN))
    end = job.started_s + takes_s
    return end if end > now else job.started_s + takes_s * _AGAIN


def make(job: QueuedJob, nodes: Nodes, running: Iterable[QueuedJob], now: float) -> Hold | None:
    """Keep room for ``job``; None where there would be none if all others ended.

    ``running``: in the order in which they were started.
    """
    gang, trial, gained = job.request.gang, nodes.copy(), nodes.free()
    found, starts_s = nodes.place(gang, trial, least=True), now
    for ends_s, other in _by_end(running, now) if found is None else ():
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


def _by_end(running: Iterable[QueuedJob], now: float) -> Iterator[tuple[float, QueuedJob]]:
    """Those of which nobody knows come last, the oldest first."""
    ends = [(expected_end_s(job, now), job) for job in running]
    yield from sorted(((end, job) for end, job in ends if end < math.inf), key=lambda pair: pair[0])
    yield from ((end, job) for end, job in ends if end == math.inf)
