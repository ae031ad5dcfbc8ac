"""All benchmarks of searches: on executors, with Ray Tune and optuna; quality of the searchers; dispatch alone."""

from __future__ import annotations

from benchmarks import search_quality, search_run, search_scale
from benchmarks.figures import Report
from benchmarks.options import Options


def run(options: Options) -> Report:
    """Run the benchmarks of whole searches, of quality and of the dispatch."""
    report = Report()
    for part in (search_run, search_quality, search_scale):
        report.add(part.run(options))
    return report
