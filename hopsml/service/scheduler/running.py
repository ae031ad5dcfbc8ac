"""Running jobs by rank, from which room may be taken for a job of higher rank."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter

from hopsml.service.scheduler.job import QueuedJob, Rank
from hopsml.service.scheduler.resources import Resources

_sequence = attrgetter("sequence")


class Running:
    """Running jobs of one queue, ordered by rank.

    Attributes:
        elastic: Job ID -> job, of jobs that may change their size.
    """

    def __init__(self) -> None:
        self._by_rank: dict[Rank, list[QueuedJob]] = {}
        self._held: dict[Rank, Resources] = {}
        self._entries: dict[str, tuple[Rank, Resources]] = {}
        self.elastic: dict[str, QueuedJob] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def add_job(self, job: QueuedJob) -> None:
        """Add a job that starts to run, or update one whose rank or size changed."""
        self.remove(job)
        entry = (job.rank, job.holds)
        self._entries[job.request.job_id] = entry
        insort(self._by_rank.setdefault(job.rank, []), job, key=_sequence)
        self._held[job.rank] = self._held.get(job.rank, Resources()).plus(entry[1])
        if job.request.changes:
            self.elastic[job.request.job_id] = job

    def remove(self, job: QueuedJob) -> None:
        """Remove a job that no longer runs; nothing happens if it is not in the table."""
        entry = self._entries.pop(job.request.job_id, None)
        if entry is None:
            return
        rank, held = entry
        line = self._by_rank[rank]
        del line[bisect_left(line, job.sequence, key=_sequence)]
        self._held[rank] = self._held[rank].minus(held)
        self.elastic.pop(job.request.job_id, None)
        if not line:
            del self._by_rank[rank], self._held[rank]

    def held_behind(self, rank: Rank) -> Resources:
        """Return the total resources of jobs behind a rank, which bounds what can be taken for it."""
        result = Resources()
        for other, held in self._held.items():
            if other > rank:
                result = result.plus(held)
        return result

    def behind(self, rank: Rank) -> Iterator[QueuedJob]:
        """Yield the jobs behind a rank, the last one first."""
        for other in sorted((other for other in self._by_rank if other > rank), reverse=True):
            yield from reversed(self._by_rank[other])

    def __iter__(self) -> Iterator[QueuedJob]:
        return (job for line in self._by_rank.values() for job in line)
