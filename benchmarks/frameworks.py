"""Figures of PyTorch, JAX and the evaluator, compared with the same by hand: ``frameworks``."""

from __future__ import annotations

from benchmarks import evaluator, torch_and_jax
from benchmarks.figures import Report
from benchmarks.options import Options


def run(options: Options) -> Report:
    """Measure the evaluator, then PyTorch and JAX."""
    report = evaluator.run(options)
    report.add(torch_and_jax.run(options))
    return report
