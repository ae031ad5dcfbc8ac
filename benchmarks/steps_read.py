"""Reader of the logs of scripts/steps_log.py: steps of each worker with their times; pure except for the reading."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Log:
    """The steps of one worker process: step -> monotonic seconds."""

    generation: int
    rank: int
    pid: int
    steps: dict[int, float]


def read(folder: Path) -> list[Log]:
    """Return all logs, without a line that is being written."""
    found = []
    for path in folder.glob("*.steps"):
        generation, rank, pid, _ = path.name.split(".")
        lines = [line.split() for line in path.read_text().splitlines()]
        steps = {int(line[0]): float(line[1]) for line in lines if len(line) == 2 and "." in line[1]}
        if steps:
            found.append(Log(int(generation), int(rank), int(pid), steps))
    return found


def next_common_step(logs: list[Log], since: float, workers: int) -> float | None:
    """Return the time at which ``workers`` logs begun after ``since`` have their first step; None before that.

    A worker that continues in place begins a new log for the next generation, and counts by that log.
    """
    firsts = sorted(min(log.steps.values()) for log in logs if min(log.steps.values()) > since)
    return firsts[workers - 1] if len(firsts) >= workers else None


def pause(logs: list[Log], before: int, after: int) -> float:
    """Return seconds from the last step that a generation finished to the first that the next one finished."""
    last = max(max(log.steps.values()) for log in logs if log.generation == before)
    return max(min(log.steps.values()) for log in logs if log.generation == after) - last


def stood_still(logs: list[Log], before: int, after: int) -> float:
    """Return the longest pause in seconds between a process's last step in ``before`` and its first in ``after``.

    Only processes that made steps in both generations count: they continued in place.

    Raises:
        ValueError: no process made steps in both.
    """
    last = {log.pid: max(log.steps.values()) for log in logs if log.generation == before}
    return max(min(log.steps.values()) - last[log.pid] for log in logs if log.generation == after and log.pid in last)


def repeated(logs: list[Log], before: int, after: int) -> int:
    """Return the number of steps that one generation had finished on all ranks and the next one repeated."""
    ends: dict[int, list[int]] = defaultdict(list)
    for log in logs:
        if log.generation == before:
            ends[before].append(max(log.steps))
        if log.generation == after:
            ends[after].append(min(log.steps))
    return max(0, min(ends[before]) - min(ends[after]) + 1)
