"""Everything about searches: on executors, beside Ray Tune and optuna; quality of the searchers; the dispatch alone."""

from __future__ import annotations

from benchmarks import search_quality, search_run, search_scale
from benchmarks.figures import Report
from benchmarks.options import Options


def run(options: Options) -> Report:
    """All of it."""
    report = Report()
    for part in (search_run, search_quality, search_scale):
        report.add(part.run(options))
    return report
