"""Tests of benchmarks from end to end: manual groups and hopsml's groups alternate."""

from __future__ import annotations

import pytest

from benchmarks import evaluator, step
from benchmarks.figures import ratio_of
from benchmarks.options import Options

pytestmark = [pytest.mark.tensorflow, pytest.mark.variant]  # what it does is tests/integration/training's to say


def test_step_benchmark_measures_two_workers():
    lines: list[str] = []
    variants = ("bare", "hopsml")  # one of each kind: every other one is a group more
    times = step.measure(2, Options(rounds=2, say=lines.append), variants)
    assert {variant: len(values) for variant, values in times.items()} == dict.fromkeys(variants, 2)
    assert all(value > 0 for values in times.values() for value in values)
    figure = ratio_of("step.ratio_n2", times["hopsml"], times["bare"], "by hand")
    assert 0.1 < figure.value < 10  # the same training: another order of magnitude would be another thing measured
    assert sum(line.endswith(" ms") for line in lines) == len(
        variants
    )  # plus the lines of an environment that had to be created


def test_evaluator_benchmark_measures_steps_during_an_evaluation():
    report = evaluator.run(Options(rounds=1, say=lambda line: None))
    figures = {figure.name: figure.value for figure in report.figures}
    assert 0.3 < figures["evaluator.stall_ratio"] < 10 and figures["evaluator.step_ms"] > 0
