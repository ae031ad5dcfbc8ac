"""Two scheduling rules of a queue in their simplest form, as controls for hopsml's scheduler.

One pool of GPUs without nodes; a change costs nothing, and the duration of a job is unknown in advance.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence

from benchmarks.scheduler_replay import LoggedJob

LEVELS = (3600.0, 36000.0)  # GPU-seconds


def first_come(jobs: Sequence[LoggedJob], gpus: int) -> list[float]:
    """Return the wait of each job in seconds, served strictly in order of arrival."""
    free, ends, line, waits = gpus, list[tuple[float, int]](), deque[LoggedJob](), list[float]()
    arrivals = deque(jobs)
    while arrivals or line:
        if ends and (not arrivals or ends[0][0] <= arrivals[0].submit_s):
            now, given_back = heapq.heappop(ends)
            free += given_back
        else:
            line.append(arrivals.popleft())
            now = line[-1].submit_s
        while line and line[0].gpus <= free:
            job = line.popleft()
            free -= job.gpus
            waits.append(now - job.submit_s)
            heapq.heappush(ends, (now + job.duration_s, job.gpus))
    return waits


class _Active:
    __slots__ = ("done_s", "job", "number")

    def __init__(self, job: LoggedJob, number: int) -> None:
        self.job, self.number, self.done_s = job, number, 0.0

    def level(self) -> int:
        return sum(self.done_s * self.job.gpus >= level - 1e-6 for level in LEVELS)

    def next_s(self) -> float:
        """Return the seconds of work until the job falls to the next level or ends."""
        left = [level / self.job.gpus - self.done_s for level in LEVELS if self.done_s * self.job.gpus < level - 1e-6]
        return min([*left, self.job.duration_s - self.done_s])


def attained_service(jobs: Sequence[LoggedJob], gpus: int) -> list[float]:
    """Return the waits in seconds if all GPUs are reassigned at each event.

    The job with the least attained service comes first, then the earlier one; a job that does not fit is skipped.
    """
    arrivals, active, running = deque(jobs), dict[int, _Active](), list[_Active]()
    waits, now, number = list[float](), 0.0, 0
    while arrivals or active:
        step = min((one.next_s() for one in running), default=float("inf"))
        then = min(now + step, arrivals[0].submit_s if arrivals else float("inf"))
        for one in running:
            one.done_s += then - now
        now = then
        for one in running:
            if one.done_s >= one.job.duration_s - 1e-6:
                waits.append(now - one.job.submit_s - one.job.duration_s)
                del active[one.number]
        while arrivals and arrivals[0].submit_s <= now:
            number += 1
            active[number] = _Active(arrivals.popleft(), number)
        free, running = gpus, []
        for one in sorted(active.values(), key=lambda each: (each.level(), each.number)):
            if one.job.gpus <= free:
                running.append(one)
                free -= one.job.gpus
    return waits
