"""Which workers hold the others up, by what each used of its machine in the last minute. Pure.

Medians over a minute are compared with the median of the other ranks, so that one pause, or one fast sample, says nothing.
Where waiting costs as much processor as working, as of a GPU's collectives, nobody differs, and nobody is marked.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from statistics import median

import msgspec

WINDOW = 12  # samples that count: a minute of the usual ones
LEAST_SAMPLES = 6
TIMES_MORE = 1.5  # than the others, of the processor
POINTS_MORE = 25.0  # percent of one core
MOVES_MB_S, TIMES_AS_MUCH = 5.0, 3.0  # of disk and network, against the others
SILENT_S, SILENT_SAMPLES = 20.0, 4.0


class RankUse(msgspec.Struct, frozen=True):
    """Medians of one rank's newest samples: percent of a core, megabytes a second; ``samples``: how many there are.

    ``silent_s``: how much older its newest sample is than the newest of all; ``pace_s``: between two samples.
    """

    rank: int
    samples: int
    silent_s: float
    pace_s: float
    cpu: float
    disk: float
    network: float


class Mark(msgspec.Struct, frozen=True):
    """``phase``: "silent", "cpu", "disk" or "network" of a rank that others wait for, "waits" of one that waits."""

    rank: int
    phase: str
    why: str


def use_of(rank: int, newest: float, cpu: Sequence[tuple[float, float]], moved: dict[str, list[float]]) -> RankUse:
    """``cpu``: times and values of the newest samples; ``moved``: megabytes so far, "disk" and "network", at these times.

    ``newest``: when any rank was last looked at.
    """
    times = [time for time, _ in cpu]
    gaps = [later - sooner for sooner, later in itertools.pairwise(times) if later > sooner]
    rates = {name: _rate(times, values) for name, values in moved.items()}
    return RankUse(
        rank=rank,
        samples=len(cpu),
        silent_s=newest - times[-1] if times else 0.0,
        pace_s=median(gaps) if gaps else 0.0,
        cpu=median([value for _, value in cpu]) if cpu else 0.0,
        disk=rates.get("disk", 0.0),
        network=rates.get("network", 0.0),
    )


def slow(ranks: Sequence[RankUse]) -> list[Mark]:
    """Whom the others wait for, and who waits, by rank; nobody of a group of one."""
    known = [one for one in ranks if one.samples >= LEAST_SAMPLES]
    silent = [one for one in known if one.silent_s > max(SILENT_S, SILENT_SAMPLES * one.pace_s)]
    heard = [one for one in known if one not in silent]
    marks = [
        Mark(one.rank, "silent", f"no sample for {one.silent_s:.0f} s: it has ended, or its agent or host is frozen")
        for one in silent
        if heard
    ]
    for one in heard:
        others = [other for other in heard if other is not one]
        if others and (mark := _mark(one, others)) is not None:
            marks.append(mark)
    marks += _waiting(marks, heard)
    return sorted(marks, key=lambda mark: mark.rank)


def _mark(one: RankUse, others: Sequence[RankUse]) -> Mark | None:
    cpu = median(other.cpu for other in others)
    if one.cpu >= TIMES_MORE * cpu and one.cpu - cpu >= POINTS_MORE:
        return Mark(one.rank, "cpu", f"it computes ({one.cpu:.0f} % of a core) while the others wait ({cpu:.0f} %)")
    if one.cpu > TIMES_MORE * cpu:
        return None
    for phase, mine, usual in (
        ("disk", one.disk, median(other.disk for other in others)),
        ("network", one.network, median(other.network for other in others)),
    ):
        if mine >= MOVES_MB_S and mine >= TIMES_AS_MUCH * usual:
            return Mark(one.rank, phase, f"its {phase} moves {mine:.0f} MB/s, that of the others {usual:.0f}")
    return None


def _waiting(marks: Sequence[Mark], heard: Sequence[RankUse]) -> list[Mark]:
    """The others, where one rank alone computes, or is silent while they do next to nothing."""
    if len(marks) != 1 or marks[0].phase not in ("cpu", "silent"):
        return []
    held_by, cause = marks[0].rank, marks[0].phase
    busy = next((one.cpu for one in heard if one.rank == held_by), POINTS_MORE)
    most = busy / TIMES_MORE if cause == "cpu" else 5.0
    waiting = [one for one in heard if one.rank != held_by and one.cpu <= most]
    return [Mark(one.rank, "waits", f"waits for rank {held_by}") for one in waiting]


def _rate(times: Sequence[float], values: Sequence[float]) -> float:
    """The median of growths a second; a counter that began anew in a further generation counts as no growth."""
    steps = zip(times, times[1:], values, values[1:], strict=False)
    rates = [max(0.0, after - before) / (later - sooner) for sooner, later, before, after in steps if later > sooner]
    return median(rates) if rates else 0.0
