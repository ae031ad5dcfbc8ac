"""Detection of workers that delay the others, from each worker's use of its machine in the last minute; pure.

Medians over a minute are compared with the median of the other ranks, so that one pause or one fast sample has no
effect. If waiting uses as much CPU as computing, as in collectives of GPUs, ranks do not differ, and none is marked.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from statistics import median

import msgspec

WINDOW = 12  # samples that are used: a minute at the usual interval
LEAST_SAMPLES = 6
TIMES_MORE = 1.5  # factor above the others' CPU use
POINTS_MORE = 25.0  # difference to the others' CPU use, in percent of one core
MOVES_MB_S, TIMES_AS_MUCH = 5.0, 3.0  # disk and network: least MB/s, and factor above the others'
SILENT_S, SILENT_SAMPLES = 20.0, 4.0


class RankUse(msgspec.Struct, frozen=True):
    """Medians of one rank's newest samples.

    Attributes:
        rank: The rank.
        samples: Number of samples.
        silent_s: Age of its newest sample, relative to the newest of all ranks, in seconds.
        pace_s: Interval of the samples, in seconds.
        cpu: CPU use, in percent of a core.
        disk: Disk traffic, in MB/s.
        network: Network traffic, in MB/s.
    """

    rank: int
    samples: int
    silent_s: float
    pace_s: float
    cpu: float
    disk: float
    network: float


class Mark(msgspec.Struct, frozen=True):
    """Mark of a rank that delays others or waits.

    Attributes:
        rank: The rank.
        phase: "silent", "cpu", "disk" or "network" for a rank that others wait for; "waits" for a waiting rank.
        why: Explanation for the user.
    """

    rank: int
    phase: str
    why: str


def use_of(rank: int, newest: float, cpu: Sequence[tuple[float, float]], moved: dict[str, list[float]]) -> RankUse:
    """Compute the medians of one rank's samples.

    Args:
        rank: The rank.
        newest: Time of the newest sample of any rank.
        cpu: Times and values of the newest samples.
        moved: Cumulative megabytes of "disk" and "network" at these times.
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
    """Return the ranks that others wait for, and those that wait, by rank; none for a single rank."""
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
    """Return the mark of a rank that differs from the others; None if it does not."""
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
    """Return marks for the waiting ranks, if only one rank computes, or is silent while the others are nearly idle."""
    if len(marks) != 1 or marks[0].phase not in ("cpu", "silent"):
        return []
    held_by, cause = marks[0].rank, marks[0].phase
    busy = next((one.cpu for one in heard if one.rank == held_by), POINTS_MORE)
    most = busy / TIMES_MORE if cause == "cpu" else 5.0
    waiting = [one for one in heard if one.rank != held_by and one.cpu <= most]
    return [Mark(one.rank, "waits", f"waits for rank {held_by}") for one in waiting]


def _rate(times: Sequence[float], values: Sequence[float]) -> float:
    """Return the median growth per second; a counter that restarts in another generation counts as no growth."""
    steps = zip(times, times[1:], values, values[1:], strict=False)
    rates = [max(0.0, after - before) / (later - sooner) for sooner, later, before, after in steps if later > sooner]
    return median(rates) if rates else 0.0
