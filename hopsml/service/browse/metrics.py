"""Curves of a run's reported metrics and of its workers' use of resources, read incrementally and downsampled.

Downsampling preserves the appearance of a curve: each bucket retains its lowest and highest point.
Ranks that delay the others are found from medians over a minute, which one pause or one fast sample does not change. If
waiting uses as much CPU as computing, as in collectives of GPUs, ranks do not differ, and none is marked.
"""

from __future__ import annotations

import itertools
import re
import sys
import threading
from array import array
from collections.abc import Sequence
from statistics import median
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from hopsml.errors import PathNotFound
from hopsml.search.metric import is_batch_metric
from hopsml.storage.filesystem import for_url
from hopsml.storage.run_dir import SYSTEM_METRICS, RunDir
from hopsml.tracking.catalog import ReportReader

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


class RankMark(msgspec.Struct, frozen=True):
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


def slow_ranks(ranks: Sequence[RankUse]) -> list[RankMark]:
    """Return the ranks that others wait for, and those that wait, by rank; none for a single rank."""
    known = [one for one in ranks if one.samples >= LEAST_SAMPLES]
    silent = [one for one in known if one.silent_s > max(SILENT_S, SILENT_SAMPLES * one.pace_s)]
    heard = [one for one in known if one not in silent]
    marks = [
        RankMark(
            one.rank, "silent", f"no sample for {one.silent_s:.0f} s: it has ended, or its agent or host is frozen"
        )
        for one in silent
        if heard
    ]
    for one in heard:
        others = [other for other in heard if other is not one]
        if others and (mark := _mark(one, others)) is not None:
            marks.append(mark)
    marks += _waiting(marks, heard)
    return sorted(marks, key=lambda mark: mark.rank)


def _mark(one: RankUse, others: Sequence[RankUse]) -> RankMark | None:
    """Return the mark of a rank that differs from the others; None if it does not."""
    cpu = median(other.cpu for other in others)
    if one.cpu >= TIMES_MORE * cpu and one.cpu - cpu >= POINTS_MORE:
        return RankMark(one.rank, "cpu", f"it computes ({one.cpu:.0f} % of a core) while the others wait ({cpu:.0f} %)")
    if one.cpu > TIMES_MORE * cpu:
        return None
    for phase, mine, usual in (
        ("disk", one.disk, median(other.disk for other in others)),
        ("network", one.network, median(other.network for other in others)),
    ):
        if mine >= MOVES_MB_S and mine >= TIMES_AS_MUCH * usual:
            return RankMark(one.rank, phase, f"its {phase} moves {mine:.0f} MB/s, that of the others {usual:.0f}")
    return None


def _waiting(marks: Sequence[RankMark], heard: Sequence[RankUse]) -> list[RankMark]:
    """Return marks for the waiting ranks, if only one rank computes, or is silent while the others are nearly idle."""
    if len(marks) != 1 or marks[0].phase not in ("cpu", "silent"):
        return []
    held_by, cause = marks[0].rank, marks[0].phase
    busy = next((one.cpu for one in heard if one.rank == held_by), POINTS_MORE)
    most = busy / TIMES_MORE if cause == "cpu" else 5.0
    waiting = [one for one in heard if one.rank != held_by and one.cpu <= most]
    return [RankMark(one.rank, "waits", f"waits for rank {held_by}") for one in waiting]


def _rate(times: Sequence[float], values: Sequence[float]) -> float:
    """Return the median growth per second; a counter that restarts in another generation counts as no growth."""
    steps = zip(times, times[1:], values, values[1:], strict=False)
    rates = [max(0.0, after - before) / (later - sooner) for sooner, later, before, after in steps if later > sooner]
    return median(rates) if rates else 0.0


KEPT_POINTS = 16_384  # points of one curve in memory, 32 bytes each: more than three times those of one response
NEWEST_POINTS = 64  # newest points, which are never merged: they show a worker's present use of its machine


class Curve:
    """Points of a growing curve, in bounded memory.

    Up to ``most`` points all are stored. Beyond that, equal ranges of point numbers are merged into the lowest and the
    highest point of each range; the first, the newest and the last finite point are always retained.
    """

    def __init__(self, most: int = KEPT_POINTS) -> None:
        """Start an empty curve.

        Args:
            most: Number of points that are stored, at least 512.
        """
        self.count = 0  # of all points, stored or merged
        self.steps, self.times, self.values = array("d"), array("d"), array("d")
        self._numbers = array("q")
        self._most = most

    def add(self, step: float, time: float, value: float) -> None:
        """Append a point to the curve; ``time`` is in seconds since 1970."""
        if len(self.values) >= self._most:
            self._merge()
        self.steps.append(step)
        self.times.append(time)
        self.values.append(value)
        self._numbers.append(self.count)
        self.count += 1

    def limit(self, most: int) -> None:
        """Limit the number of stored points to ``most``, at least 512, from now on."""
        self._most = most
        if len(self.values) > most:
            self._merge()

    @property
    def is_whole(self) -> bool:
        """True if no points were merged."""
        return self.count == len(self.values)

    @property
    def held_bytes(self) -> int:
        """Memory used by the points, in bytes."""
        return sum(map(sys.getsizeof, (self.steps, self.times, self.values, self._numbers)))

    def _merge(self) -> None:
        """Merge the points into ranges, of which there are at most a quarter of the limit."""
        width = 1 << max(0, (-(-4 * self.count // self._most) - 1).bit_length())  # at most a quarter as many ranges
        values, ranges = np.array(self.values), np.array(self._numbers) // width
        newest = np.arange(max(0, len(values) - NEWEST_POINTS), len(values))
        finite = np.flatnonzero(np.isfinite(values))
        kept = np.unique(np.concatenate([[0], _extremes(values, ranges), finite[-1:], newest]).astype(int))
        for points in (self.steps, self.times, self.values, self._numbers):
            points[:] = array(points.typecode, np.array(points)[kept].tobytes())


def _extremes(values: NDArray[np.float64], ranges: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the indices of the lowest, the highest and the first non-finite value of each range of equal numbers."""
    begins = np.flatnonzero(np.diff(ranges, prepend=-1))
    lengths = np.diff(begins, append=len(values))
    is_finite = np.isfinite(values)
    low, high = np.where(is_finite, values, np.inf), np.where(is_finite, values, -np.inf)
    chosen = [
        low == np.repeat(np.minimum.reduceat(low, begins), lengths),
        high == np.repeat(np.maximum.reduceat(high, begins), lengths),
        ~is_finite,
    ]
    found = []
    for mask in chosen:
        indices = np.flatnonzero(mask)
        found.append(indices[np.unique(ranges[indices], return_index=True)[1]])
    return np.concatenate(found)


def kept_indices(values: NDArray[np.float64], most: int) -> list[int]:
    """Return the ascending indices of at most about ``most`` points: first, last, and the extremes of equal buckets.

    Of values that are not finite, one per bucket is retained, so that gaps and overflows are visible.
    """
    count = len(values)
    if count <= most or count <= 4:
        return list(range(count))
    buckets = max(1, (most - 2) // 2)
    size = -(-count // buckets)
    buckets = -(-count // size)  # number of buckets that are not empty
    padded = np.full(buckets * size, np.nan)
    padded[:count] = values
    pieces = padded.reshape(buckets, size)
    finite = np.isfinite(pieces)
    begins = np.arange(buckets) * size
    lowest = begins + np.where(finite, pieces, np.inf).argmin(axis=1)
    highest = begins + np.where(finite, pieces, -np.inf).argmax(axis=1)
    gaps = (begins + finite.argmin(axis=1))[~finite.all(axis=1)]
    found = np.unique(np.concatenate([[0, count - 1], lowest, highest, gaps]))
    return [int(index) for index in found if index < count]


MOST_POINTS = 5_000  # most points of one curve in one response
MOST_BYTES = 32 << 20  # memory limit for the curves of one run
FEWEST_POINTS = 512  # least points of a curve, for a run that has very many curves
CHECKED_REPORTS = 65_536  # reports between two checks of the memory limit
CURVE_BYTES, FILE_BYTES = 800, 4096  # memory of a curve and of a file's reader, without their points; measured
LARGEST_WHOLE = int(sys.float_info.max)
CHIEF = "chief"
_CPU = "cpu_utilization_percentage"
_MOVED = {
    "disk": ("disk_read_megabytes", "disk_write_megabytes"),
    "network": ("network_receive_megabytes", "network_transmit_megabytes"),
}
_SYSTEM_FILE = re.compile(r"g(\d+)-rank(\d+)" + re.escape(SYSTEM_METRICS))


class Series(msgspec.Struct, frozen=True):
    """A curve of one metric and one source.

    Attributes:
        tag: Name of the metric.
        source: "chief" for reported metrics, "rank 1" for the resources that a worker used.
        count: Number of all points; the lists contain some of them.
        steps: Steps of the points.
        times: Times of the points, in seconds since 1970.
        values: Values of the points; None for a value that is not finite.
    """

    tag: str
    source: str
    count: int
    steps: list[float]
    times: list[float]
    values: list[float | None]


def _series(curve: Curve, tag: str, source: str, most: int) -> Series:
    """Return a curve with at most about ``most`` points."""
    kept = kept_indices(np.array(curve.values), most)
    return Series(
        tag,
        source,
        curve.count,
        [curve.steps[index] for index in kept],
        [curve.times[index] for index in kept],
        [_finite(curve.values[index]) for index in kept],
    )


class Metrics:
    """Curves of one run; ``more`` reads new reports. Thread-safe.

    ``held_bytes``: memory used by the curves after the last call of ``more``, in bytes.
    """

    def __init__(self, directory: RunDir, most_bytes: int = MOST_BYTES) -> None:
        """Start to read a run's reports.

        Args:
            directory: The run's.
            most_bytes: Memory that the curves may use, in bytes; beyond it, all are stored with fewer points.
        """
        self._directory, self._lock, self._most_bytes = directory, threading.Lock(), most_bytes
        self._reports = ReportReader(directory.metrics)
        self._curves: dict[tuple[str, str], Curve] = {}
        self._points = KEPT_POINTS  # most points of each curve
        self._systems: dict[str, tuple[str, ReportReader]] = {}
        self._count = 0
        self.held_bytes = 0

    def more(self) -> None:
        """Read the reports that were added since the last call. Raises StorageError."""
        with self._lock:
            for report in self._reports.read_new_reports():
                self._take(report, CHIEF, float(self._count))
                self._count += 1
                if self._count % CHECKED_REPORTS == 0:
                    self._keep_within()
            self._find_systems()
            for source, lines in self._systems.values():
                for sample in lines.read_new_reports():
                    self._take(sample, source, 0.0)
                self._keep_within()
            self._keep_within()

    def _keep_within(self) -> None:
        """Halve the points of all curves until they fit into the memory limit, or have the least number of points."""
        while (held := self._held()) > self._most_bytes and self._points > FEWEST_POINTS:
            self._points //= 2
            for curve in self._curves.values():
                curve.limit(self._points)
        self.held_bytes = held

    def _held(self) -> int:
        """Return the memory used by the curves and readers, in bytes."""
        files = len(self._systems) + 1
        return files * FILE_BYTES + sum(CURVE_BYTES + curve.held_bytes for curve in self._curves.values())

    def tags(self) -> list[tuple[str, str, int]]:
        """Return tag, source and number of points of every curve, by name, each of these groups after the other.

        They are values that were reported for steps or epochs, others within epochs, and the use of resources.
        """
        with self._lock:
            found = [(tag, source, curve.count) for (tag, source), curve in self._curves.items()]
        return sorted(found, key=lambda one: (one[1] != CHIEF, is_batch_metric(one[0]), one[0], one[1]))

    def series(self, tags: list[str], most: int) -> list[Series]:
        """Return the curves of these tags, of all sources, each of at most about ``most`` points."""
        with self._lock:
            found = sorted(key for key in self._curves if key[0] in tags)
            return [_series(self._curves[key], *key, min(most, MOST_POINTS)) for key in found]

    def summary(self, tag: str) -> tuple[float, float, float] | None:
        """Return last, lowest and highest finite value that was reported under a tag; None if there is none."""
        with self._lock:
            curve = self._curves.get((tag, CHIEF))
            known = np.array([]) if curve is None else np.array(curve.values)
        finite = known[np.isfinite(known)]
        return (float(finite[-1]), float(finite.min()), float(finite.max())) if len(finite) else None

    def at_step(self, tag: str, step: float) -> float | None:
        """Return the last value reported at or before a step; None before the first. Raises StorageError.

        The file is read again if the curve is too long to be stored in full.
        """
        with self._lock:
            curve = self._curves.get((tag, CHIEF))
            if curve is None:
                return None
            if curve.is_whole:
                before = np.flatnonzero(np.array(curve.steps) <= step)
                return _finite(curve.values[int(before[-1])]) if len(before) else None
        found = None
        for number, report in enumerate(ReportReader(self._directory.metrics).read_new_reports()):
            value = report.get(tag)
            if value is not None and _is_number(value) and _step(report, number) <= step:
                found = _finite(float(value))
        return found

    def uses(self) -> list[RankUse]:
        """Return each rank's recent use of its machine, by rank."""
        with self._lock:
            curves = {source: curve for (tag, source), curve in self._curves.items() if tag == _CPU and source != CHIEF}
            newest = max((curve.times[-1] for curve in curves.values()), default=0.0)
            found = [self._use(source, curve, newest) for source, curve in curves.items()]
        return sorted(found, key=lambda one: one.rank)

    def _use(self, source: str, curve: Curve, newest: float) -> RankUse:
        """Return one rank's recent use of its machine; ``newest`` is the time of the newest sample of any rank."""
        count = min(WINDOW, len(curve.values))
        cpu = list(zip(curve.times[-count:], curve.values[-count:], strict=True))
        moved: dict[str, list[float]] = {}
        for name, tags in _MOVED.items():
            pieces = [self._curves[tag, source].values[-count:] for tag in tags if (tag, source) in self._curves]
            moved[name] = [sum(both) for both in zip(*pieces, strict=False)]
        return use_of(int(source.removeprefix("rank ")), newest, cpu, moved)

    def _take(self, report: dict[str, Any], source: str, number: float) -> None:
        """Append the values of a report to the curves; ``number`` is its step if it names none."""
        time, at = report.get("time"), _step(report, number)
        when = float(time) if isinstance(time, int | float) and _is_number(time) else 0.0
        for tag, value in report.items():
            if tag not in ("step", "time") and _is_number(value):
                key = (tag, source)
                if key not in self._curves:
                    self._curves[key] = Curve(self._points)
                self._curves[key].add(at, when, float(value))

    def _find_systems(self) -> None:
        """Find files with resource samples of further workers."""
        try:
            entries = for_url(self._directory.logs).list_dir(self._directory.logs)
        except PathNotFound:
            return
        for entry in entries:
            found = _SYSTEM_FILE.fullmatch(entry.name)
            if found and entry.url not in self._systems:
                self._systems[entry.url] = f"rank {found[2]}", ReportReader(entry.url)


def _step(report: dict[str, Any], number: float) -> float:
    """Return the step that a report names, or its number."""
    step = report.get("step")
    return float(step) if isinstance(step, int | float) and _is_number(step) else number


def _is_number(value: Any) -> bool:
    """Return True for numbers that ``float`` accepts: no Booleans, and no integer beyond the range of floats."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, float) or abs(value) <= LARGEST_WHOLE


def _finite(value: float) -> float | None:
    """Return the value, or None if it is not finite."""
    return value if value - value == 0 else None
