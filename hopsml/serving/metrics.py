"""Metrics of a server, in the text format of Prometheus. Pure.

A count is a number under its full name, including labels, so that the counts of several replicas are added by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Counts = dict[str, float]

LATENCY_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
BATCH_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024)
_HELP = {
    "hopsml_requests_total": ("counter", "Requests answered, by version and HTTP status."),
    "hopsml_request_seconds": ("histogram", "From a request's arrival to its answer."),
    "hopsml_batch_rows": ("histogram", "Rows that were computed in one call of the model."),
    "hopsml_queue_requests": ("gauge", "Requests that wait to be computed."),
    "hopsml_log_dropped_total": ("counter", "Lines of the request log that were dropped, as too many waited."),
    "hopsml_version_loaded": ("gauge", "Replicas that hold this version."),
    "hopsml_replicas": ("gauge", "Replicas that answer."),
}


class Meter:
    """Counters and histograms of one process."""

    def __init__(self) -> None:
        self.counts: Counts = {}

    def add(self, name: str, amount: float = 1.0) -> None:
        """Increase a count by an amount."""
        self.counts[name] = self.counts.get(name, 0.0) + amount

    def observe(self, name: str, value: float, bounds: Iterable[float], labels: str = "") -> None:
        """Add one value to a histogram.

        Args:
            name: Name of the histogram.
            value: The value.
            bounds: Upper bounds of the buckets.
            labels: Labels in Prometheus' format, without braces.
        """
        comma = "," if labels else ""
        for bound in bounds:
            self.add(f'{name}_bucket{{{labels}{comma}le="{bound:g}"}}', float(value <= bound))
        self.add(f'{name}_bucket{{{labels}{comma}le="+Inf"}}')
        braced = f"{{{labels}}}" if labels else ""
        self.add(f"{name}_sum{braced}", value)
        self.add(f"{name}_count{braced}")

    def answered(self, version: int | None, status: int, seconds: float) -> None:
        """Count an answered request; ``version`` is None if the request was answered before a version was chosen."""
        label = f'version="{"" if version is None else version}"'
        self.add(f'hopsml_requests_total{{{label},status="{status}"}}')
        self.observe("hopsml_request_seconds", seconds, LATENCY_S, label)

    def batch(self, rows: int) -> None:
        """Count a call of the model with this number of rows."""
        self.observe("hopsml_batch_rows", rows, BATCH_ROWS)


def is_gauge(name: str) -> bool:
    """Return True if a metric is a gauge, whose value may decrease."""
    return _HELP.get(_family(name), ("",))[0] == "gauge"


def _family(name: str, families: Mapping[str, tuple[str, str]] = _HELP) -> str:
    """Return the name of a count without labels and histogram endings."""
    base = name.partition("{")[0]
    for ending in ("_bucket", "_sum", "_count"):
        if base.endswith(ending) and base.removesuffix(ending) in families:
            return base.removesuffix(ending)
    return base


class Sum:
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

    def ended(self, replica: int) -> None:
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


def text(counts: Mapping[str, float], families: Mapping[str, tuple[str, str]] = _HELP) -> str:
    """Return counts in Prometheus' text format.

    Args:
        counts: Counts by their full names.
        families: Metrics to include, in this order: name -> (kind, description).
    """
    lines: list[str] = []
    for family, (kind, what) in families.items():
        own = [name for name in counts if _family(name, families) == family]
        if own:
            lines += [f"# HELP {family} {what}", f"# TYPE {family} {kind}"]
            lines += [f"{name} {counts[name]:.10g}" for name in sorted(own, key=_order)]
    return "\n".join(lines) + "\n"


def _order(name: str) -> tuple[str, float, str]:
    """Return the sorting key of a count: buckets by their numerical bounds."""
    head, mark, bound = name.partition('le="')
    return head, float(bound.rstrip('"}')) if mark else 0.0, name
