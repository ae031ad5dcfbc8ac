"""Waiting jobs of a queue, in lines of equal gangs, so that a scheduling pass checks each kind of gang once."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter

from hopsml.service.scheduler.job import QueuedJob, Rank
from hopsml.service.scheduler.resources import GangShape

# All jobs of a line have the same rank and gang; they are in the order of their submission.
Key = tuple[Rank, GangShape]
Line = list[QueuedJob]
_sequence = attrgetter("sequence")


class WaitingLines:
    """Waiting jobs of one queue, grouped by their rank (place in the queue's order) and by the shape of their gang."""

    def __init__(self) -> None:
        self._lines: dict[Key, Line] = {}
        self._keys: dict[str, Key] = {}  # ID of a job -> the key under which it was added

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[QueuedJob]:
        """Yield all jobs in the order of rank and submission."""
        jobs = [job for line in self._lines.values() for job in line]
        return iter(sorted(jobs, key=lambda job: (job.rank, job.sequence)))

    def add_job(self, job: QueuedJob) -> None:
        """Add a job at the position of its submission among jobs of its rank."""
        key = (job.rank, job.request.gang)
        self._keys[job.request.job_id] = key
        insort(self._lines.setdefault(key, []), job, key=_sequence)

    def remove(self, job: QueuedJob) -> None:
        """Remove a job that no longer waits, or whose rank is about to change."""
        key = self._keys.pop(job.request.job_id)
        line = self._lines[key]
        del line[bisect_left(line, job.sequence, key=_sequence)]
        if not line:
            del self._lines[key]

    def walk(self) -> Walk:
        """Return a walk through all jobs in order."""
        return Walk(list(self._lines.values()))


class Walk:
    """One pass through a queue: ``job`` is the current job until a method moves to the next one."""

    def __init__(self, lines: list[Line]) -> None:
        self._heap = [(line[0].rank, line[0].sequence, number, 0, line) for number, line in enumerate(lines)]
        heapq.heapify(self._heap)
        self._passed: set[GangShape] = set()

    @property
    def job(self) -> QueuedJob | None:
        """Current job in order; None at the end."""
        while self._heap:
            *_, position, line = self._heap[0]
            if line[position].request.gang not in self._passed:
                return line[position]
            heapq.heappop(self._heap)
        return None

    def taken(self) -> None:
        """Move to the next job, after ``job`` was removed from its line."""
        _, _, number, position, line = heapq.heappop(self._heap)
        self._push(number, position, line)

    def skip(self) -> None:
        """Move to the next job, which may have the same gang."""
        _, _, number, position, line = heapq.heappop(self._heap)
        self._push(number, position + 1, line)

    def pass_over(self) -> None:
        """Skip all jobs with the same gang, whatever their rank: there is no room for it in this pass."""
        *_, position, line = self._heap[0]
        self._passed.add(line[position].request.gang)

    def _push(self, number: int, position: int, line: Line) -> None:
        """Add a line at a position, unless it is at its end."""
        if position < len(line):
            heapq.heappush(self._heap, (line[position].rank, line[position].sequence, number, position, line))
