"""Large batches: deviation of the optimizers from their papers' formulas, and time of an update against Keras's SGD.

All optimizers are of Keras 3, in one process, on ResNet-50's trained variables; they alternate, in a different order
each round.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence

from benchmarks.figures import Figure, Report
from benchmarks.options import Options
from benchmarks.spread import paired_ratios, spread_of

STUDY = "benchmarks.scripts.optimizer_updates"
LIMIT_S = 900


def run(options: Options) -> Report:
    """Run all studies of large batches."""
    report = Report()
    for study in STUDIES:
        report.figures += study(options)
    return report


def updates(options: Options) -> list[Figure]:
    """Measure ``large_batch.optimizer_ratio`` (the worse of LARS and LAMB) and the errors after 100 steps."""
    rounds = options.rounds_of(30, 8)
    done = subprocess.run(
        [sys.executable, "-m", STUDY, str(rounds)], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{STUDY} ended with {done.returncode}: {done.stderr[-500:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    times = found["seconds"]
    figures = [
        Figure(f"large_batch.{name}_error", found["errors"][name], "", 1, found["errors"][name], found["errors"][name])
        for name in ("lars", "lamb")
    ]
    ratios = {name: spread_of(paired_ratios(times[name], times["sgd"])) for name in ("lars", "lamb")}
    for name, one in ratios.items():
        options.say(f"{name}: {1e3 * spread_of(times[name]).median:.1f} ms an update, {one.median:.2f} of SGD's")
    worst = max(ratios.values(), key=lambda one: one.median)
    figures.append(
        Figure(
            "large_batch.optimizer_ratio", worst.median, "", worst.n, worst.low, worst.high, "Keras SGD", worst.median
        )
    )
    return figures


STUDIES: Sequence[Callable[[Options], list[Figure]]] = (updates,)
