"""Counters, gauges and histograms of a process, in the text format of Prometheus. Pure.

A count is a number under its full name, including labels, so that the counts of several processes are added by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Counts = dict[str, float]
Families = Mapping[str, tuple[str, str]]  # name -> (kind, description)


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


def family_of(name: str, families: Families) -> str:
    """Return the name of a count without labels and histogram endings."""
    base = name.partition("{")[0]
    for ending in ("_bucket", "_sum", "_count"):
        if base.endswith(ending) and base.removesuffix(ending) in families:
            return base.removesuffix(ending)
    return base


def prometheus_text(counts: Mapping[str, float], families: Families) -> str:
    """Return counts in Prometheus' text format.

    Args:
        counts: Counts by their full names.
        families: Metrics to include, in this order: name -> (kind, description).
    """
    lines: list[str] = []
    for family, (kind, what) in families.items():
        own = [name for name in counts if family_of(name, families) == family]
        if own:
            lines += [f"# HELP {family} {what}", f"# TYPE {family} {kind}"]
            lines += [f"{name} {counts[name]:.10g}" for name in sorted(own, key=_order)]
    return "\n".join(lines) + "\n"


def _order(name: str) -> tuple[str, float, str]:
    """Return the sorting key of a count: buckets by their numerical bounds."""
    head, mark, bound = name.partition('le="')
    return head, float(bound.rstrip('"}')) if mark else 0.0, name
