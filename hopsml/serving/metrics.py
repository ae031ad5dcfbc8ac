"""Metrics of a serving: those of one replica, and the sum over all replicas. Pure."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping

from hopsml.core.metrics import Counts, Meter, family_of
from hopsml.model.serving_load import VersionLoad

LATENCY_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
BATCH_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024)
FAMILIES = {
    "hopsml_requests_total": ("counter", "Requests answered, by version and HTTP status."),
    "hopsml_request_seconds": ("histogram", "Time from the arrival of a request to its answer."),
    "hopsml_batch_rows": ("histogram", "Rows in one call of the model."),
    "hopsml_queue_requests": ("gauge", "Requests that wait for their computation."),
    "hopsml_log_dropped_total": ("counter", "Lines of the request log that were dropped, since too many were waiting."),
    "hopsml_version_loaded": ("gauge", "Replicas that have loaded this version."),
    "hopsml_replicas": ("gauge", "Replicas that answer."),
}


class ReplicaMeter(Meter):
    """Counters and histograms of one replica."""

    def count_answer(self, version: int | None, status: int, seconds: float) -> None:
        """Count an answered request; ``version`` is None if the request was answered before a version was chosen."""
        label = f'version="{"" if version is None else version}"'
        self.add(f'hopsml_requests_total{{{label},status="{status}"}}')
        self.observe("hopsml_request_seconds", seconds, LATENCY_S, label)

    def count_batch(self, rows: int) -> None:
        """Count a call of the model with this number of rows."""
        self.observe("hopsml_batch_rows", rows, BATCH_ROWS)


def is_gauge(name: str) -> bool:
    """Return True if a metric is a gauge, whose value may decrease."""
    return FAMILIES.get(family_of(name, FAMILIES), ("",))[0] == "gauge"


class ReplicaCountsSum:
    """Counts of all replicas together.

    The counters of ended replicas remain included, and no counter ever decreases.
    """

    def __init__(self) -> None:
        self._latest: dict[int, Counts] = {}
        self._ended: Counts = {}
        self._told: Counts = {}

    def update(self, replica: int, counts: Counts) -> None:
        """Replace the counts of a replica by its newest ones."""
        self._latest[replica] = counts

    def mark_ended(self, replica: int) -> None:
        """Retain the counters of a replica that has ended; its successor starts at zero."""
        for name, value in self._latest.pop(replica, {}).items():
            if not is_gauge(name):
                self._ended[name] = self._ended.get(name, 0.0) + value

    def total(self) -> Counts:
        """Return the sums over all replicas."""
        found: Counts = dict(self._ended)
        for counts in self._latest.values():
            for name, value in counts.items():
                found[name] = found.get(name, 0.0) + value
        for name in found:
            if not is_gauge(name):
                found[name] = max(found[name], self._told.get(name, 0.0))
        self._told = found
        return dict(found)


INTERVALS = 60  # rates that are retained
_ANSWERED = re.compile(r'hopsml_requests_total\{version="([0-9]*)",status="([0-9]+)"\}')


class LoadMeter:
    """Rates of a serving's requests between two readings of its counts."""

    def __init__(self, now_s: float) -> None:
        self._at_s, self._before = now_s, Counts()
        self._rates: deque[float] = deque(maxlen=INTERVALS)
        self.versions: list[VersionLoad] = []
        self.seconds: float | None = None  # mean time to answer a request in the last interval
        self.waiting = 0

    @property
    def rates(self) -> list[float]:
        """Answered requests per second of the last intervals, the newest last."""
        return list(self._rates)

    def update(self, counts: Mapping[str, float], now_s: float) -> None:
        """Read the sums over all replicas at a monotonic time."""
        elapsed_s = max(now_s - self._at_s, 1e-3)
        answered, failed, grown = dict[str, int](), dict[str, int](), dict[str, float]()
        for name, value in counts.items():
            if found := _ANSWERED.fullmatch(name):
                version, status = found.groups()
                answered[version] = answered.get(version, 0) + int(value)
                failed[version] = failed.get(version, 0) + (int(value) if status >= "500" else 0)
                grown[version] = grown.get(version, 0.0) + value - self._before.get(name, 0.0)
        self.versions = [
            VersionLoad(int(version), answered[version], failed[version], grown[version] / elapsed_s)
            for version in sorted(filter(None, answered), key=int)
        ]
        self._rates.append(sum(grown.values()) / elapsed_s)
        took_s, count = (self._sum_of(counts, f"hopsml_request_seconds_{ending}") for ending in ("sum", "count"))
        self.seconds = took_s / count if count > 0 else None
        self.waiting = int(counts.get("hopsml_queue_requests", 0.0))
        self._before, self._at_s = dict(counts), now_s

    def _sum_of(self, counts: Mapping[str, float], family: str) -> float:
        """Return the growth of a count since the last reading, over all its labels."""
        return sum(
            value - self._before.get(name, 0.0) for name, value in counts.items() if name.partition("{")[0] == family
        )
