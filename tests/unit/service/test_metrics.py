"""Tests of curves: read incrementally, and reduced without losing a peak."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from hopsml.errors import ArgumentError
from hopsml.service.browse.compare import compare_runs
from hopsml.service.browse.metrics import KEPT_POINTS, Curve, Metrics, kept_indices
from hopsml.service.browse.project import Project
from hopsml.storage.run_dir import RunDir
from tests.helpers.service.project import ProjectOnDisk

pytestmark = pytest.mark.fast


def test_short_curve_retains_all_points() -> None:
    assert kept_indices(np.array([1.0, 2.0, 3.0]), 10) == [0, 1, 2]
    assert kept_indices(np.array([]), 10) == []


def test_reduced_curve_retains_peaks_ends_and_gaps() -> None:
    values = np.zeros(10_000)
    values[1234], values[5678], values[7777] = 9.0, -9.0, math.nan
    retained = kept_indices(values, 100)
    assert len(retained) < 150 and retained == sorted(set(retained))
    assert {0, 1234, 5678, 7777, 9999} <= set(retained)


def test_curve_of_nan_values_is_reduced() -> None:
    assert len(kept_indices(np.full(10_000, math.nan), 100)) < 150


def test_batch_metrics_are_listed_after_epoch_metrics(project: ProjectOnDisk) -> None:
    run = project.run("app_1", state=None)
    run.report(1, batch_loss=2.0), run.report(2, loss=1.5)
    metrics = Metrics(RunDir(str(run.folder)))
    metrics.more()
    assert [tag for tag, _, _ in metrics.tags()] == ["loss", "batch_loss"]
    assert metrics.summary("loss") == (1.5, 1.5, 1.5)
    assert compare_runs(Project(project.url), ["app_1"]).tag == "loss"


def test_misspelt_metric_is_refused_and_an_absent_one_is_replaced(project: ProjectOnDisk) -> None:
    project.run("app_1", state=None).report(1, accuracy=0.5)
    with pytest.raises(ArgumentError, match=r"'acuracy' .'accuracy'.; did you mean 'accuracy'"):
        compare_runs(Project(project.url), ["app_1"], "acuracy")
    assert compare_runs(Project(project.url), ["app_1"], "loss").tag == "accuracy"


def test_reports_and_samples_are_read_incrementally(project: ProjectOnDisk) -> None:
    run = project.run("app_1", state=None)
    metrics = Metrics(RunDir(str(run.folder)))
    metrics.more()
    assert metrics.tags() == []
    run.report(0, loss=2.0, accuracy=0.1)
    metrics.more()
    run.report(1, loss=1.0)
    (run.folder / "logs" / "g0-rank1.system.jsonl").write_text('{"time": 1001, "step": 0, "cpu": 50.0}\n{"time": 10')
    metrics.more()
    assert metrics.tags() == [("accuracy", "chief", 1), ("loss", "chief", 2), ("cpu", "rank 1", 1)]
    (found,) = metrics.series(["loss"], 100)
    assert (found.steps, found.times, found.values) == ([0.0, 1.0], [1000.0, 1001.0], [2.0, 1.0])


def test_metric_summary_and_value_at_a_step(project: ProjectOnDisk) -> None:
    run = project.run("app_1")
    for step, loss in [(0, 3.0), (10, 1.0), (20, 2.0), (30, math.nan)]:
        run.report(step, loss=loss)
    metrics = Metrics(RunDir(str(run.folder)))
    metrics.more()
    assert metrics.summary("loss") == (2.0, 1.0, 3.0)
    assert metrics.at_step("loss", 15) == 1.0 and metrics.at_step("loss", -1) is None
    assert metrics.summary("unknown") is None
    assert metrics.series(["loss"], 100)[0].values == [3.0, 1.0, 2.0, None]


def test_invalid_report_lines_are_skipped(project: ProjectOnDisk) -> None:
    run = project.run("app_1")
    lines = [
        '{"step": "x", "loss": 1}',
        "[1]",
        "nonsense",
        json.dumps({"step": 2, "loss": True, "text": "a", "acc": 1}),
    ]
    (run.folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    metrics = Metrics(RunDir(str(run.folder)))
    metrics.more()
    assert metrics.tags() == [("acc", "chief", 1), ("loss", "chief", 1)]


def test_long_curve_has_bounded_memory_and_retains_ends_and_extremes() -> None:
    curve, planted = Curve(), {3: 7.0, 150_000: -8.0, 270_001: 9.0}
    for number in range(300_000):
        curve.add(float(number), 0.0, planted.get(number, math.sin(number)))
    assert curve.count == 300_000 and not curve.is_whole
    assert len(curve.values) <= KEPT_POINTS and curve.held_bytes <= 40 * KEPT_POINTS
    points = dict(zip(curve.steps, curve.values, strict=True))
    assert {0.0, 299_999.0} <= points.keys() and planted.items() <= points.items()
    assert curve.steps.tolist() == sorted(points)
    counts, _ = np.histogram(curve.steps, bins=10, range=(0, 260_000))
    assert counts.min() > 200, "the oldest points are thinned out no more than the newer ones"
    curve.limit(512)
    assert len(curve.values) <= 512 and {*planted.values()} <= {*curve.values} and curve.values[-1] == points[299_999]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_long_curve_retains_gaps_and_the_last_finite_point(value: float) -> None:
    curve = Curve(512)
    for number in range(5_000):
        curve.add(number, 0.0, 1.5 if number in (100, 4_000) else value)
    assert len(curve.values) <= 512
    assert [step for step, one in zip(curve.steps, curve.values, strict=True) if one == 1.5][-1] == 4_000
    assert sum(not math.isfinite(one) for one in curve.values) > 60


def test_summary_of_a_long_run_is_exact(project: ProjectOnDisk) -> None:
    run = project.run("app_1")
    values = [math.sin(number / 100) for number in range(50_000)]
    run.report_all("loss", values)
    metrics = Metrics(RunDir(str(run.folder)))
    metrics.more()
    assert metrics.tags() == [("loss", "chief", 50_000)]
    assert metrics.summary("loss") == (values[-1], min(values), max(values))
    assert [metrics.at_step("loss", step) for step in (17_001, 49_999.5, -1)] == [values[17_001], values[-1], None]
    (found,) = metrics.series(["loss"], 1000)
    assert (found.count, found.steps[0], found.steps[-1]) == (50_000, 0.0, 49_999.0)


def test_run_with_many_curves_retains_fewer_points_of_each(project: ProjectOnDisk) -> None:
    run = project.run("app_1", state=None)
    tags = [f"metric{number}" for number in range(40)]
    for step in range(2_000):
        run.report(step, **dict.fromkeys(tags, float(step)))
    metrics = Metrics(RunDir(str(run.folder)), most_bytes=1 << 20)
    metrics.more()
    assert 0 < metrics.held_bytes <= 1 << 20
    assert metrics.summary("metric39") == (1999.0, 0.0, 1999.0)
    run.report(2_000, metric39=-1.0)
    metrics.more()
    assert metrics.summary("metric39") == (-1.0, -1.0, 1999.0) and metrics.held_bytes <= 1 << 20
