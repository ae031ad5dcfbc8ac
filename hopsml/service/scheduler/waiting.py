"""Who waits in a queue, in order: a line for each kind of gang, so that a pass asks once for all who want the same."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter

from hopsml.service.scheduler.job import QueuedJob, Rank
from hopsml.service.scheduler.resources import GangShape

# All of a line have the same rank and want the same; its jobs stand in the order in which they were submitted.
Key = tuple[Rank, GangShape]
Line = list[QueuedJob]
_sequence = attrgetter("sequence")


class WaitingLines:
    """The lines of one queue."""

    def __init__(self) -> None:
        self._lines: dict[Key, Line] = {}
        self._keys: dict[str, Key] = {}  # of each job, as it was put

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[QueuedJob]:
        """In order."""
        jobs = [job for line in self._lines.values() for job in line]
        return iter(sorted(jobs, key=lambda job: (job.rank, job.sequence)))

    def put(self, job: QueuedJob) -> None:
        """Its place is that of its submission, among those of its rank."""
        key = (job.rank, job.request.gang)
        self._keys[job.request.job_id] = key
        insort(self._lines.setdefault(key, []), job, key=_sequence)

    def remove(self, job: QueuedJob) -> None:
        """It waits no more, or is about to be put again with another rank."""
        key = self._keys.pop(job.request.job_id)
        line = self._lines[key]
        del line[bisect_left(line, job.sequence, key=_sequence)]
        if not line:
            del self._lines[key]

    def walk(self) -> Walk:
        """Look at all of them in order."""
        return Walk(list(self._lines.values()))


class Walk:
    """One pass through a queue: ``job`` is the next in order, until one of the methods has said what became of it."""

    def __init__(self, lines: list[Line]) -> None:
        self._heap = [(line[0].rank, line[0].sequence, number, 0, line) for number, line in enumerate(lines)]
        heapq.heapify(self._heap)
        self._passed: set[GangShape] = set()

    @property
    def job(self) -> QueuedJob | None:
        """None: all have been looked at."""
        while self._heap:
            *_, position, line = self._heap[0]
            if line[position].request.gang not in self._passed:
                return line[position]
            heapq.heappop(self._heap)
        return None

    def taken(self) -> None:
        """``job`` has just been removed from its line: look at the next one."""
        _, _, number, position, line = heapq.heappop(self._heap)
        self._push(number, position, line)

    def skip(self) -> None:
        """Not this one; perhaps the next that wants the same."""
        _, _, number, position, line = heapq.heappop(self._heap)
        self._push(number, position + 1, line)

    def pass_over(self) -> None:
        """Nobody who wants the same, of whatever rank: there is no room for it in this pass."""
        *_, position, line = self._heap[0]
        self._passed.add(line[position].request.gang)

    def _push(self, number: int, position: int, line: Line) -> None:
        if position < len(line):
            heapq.heappush(self._heap, (line[position].rank, line[position].sequence, number, position, line))
