"""Curves: read on as they grow, and made smaller without losing a peak."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from hopsml.service.browse.downsampling import kept_indices
from hopsml.service.browse.metrics import Metrics
from hopsml.storage.run_dir import RunDir
from tests.service.project import ProjectOnDisk

pytestmark = pytest.mark.fast


def test_a_curve_that_is_short_is_kept_whole() -> None:
    assert kept_indices(np.array([1.0, 2.0, 3.0]), 10) == [0, 1, 2]
    assert kept_indices(np.array([]), 10) == []


def test_peaks_ends_and_gaps_are_kept() -> None:
    values = np.zeros(10_000)
    values[1234], values[5678], values[7777] = 9.0, -9.0, math.nan
    kept = kept_indices(values, 100)
    assert len(kept) < 150 and kept == sorted(set(kept))
    assert {0, 1234, 5678, 7777, 9999} <= set(kept)


def test_a_curve_without_a_number_is_kept_small() -> None:
    assert len(kept_indices(np.full(10_000, math.nan), 100)) < 150


def test_reports_and_samples_are_read_on(project: ProjectOnDisk) -> None:
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


def test_last_best_and_at_a_step(project: ProjectOnDisk) -> None:
    run = project.run("app_1")
    for step, loss in [(0, 3.0), (10, 1.0), (20, 2.0), (30, math.nan)]:
        run.report(step, loss=loss)
    metrics = Metrics(RunDir(str(run.folder)))
    metrics.more()
    assert metrics.summary("loss") == (2.0, 1.0, 3.0)
    assert metrics.at_step("loss", 15) == 1.0 and metrics.at_step("loss", -1) is None
    assert metrics.summary("unknown") is None
    assert metrics.series(["loss"], 100)[0].values == [3.0, 1.0, 2.0, None]


def test_lines_that_are_no_reports_are_passed_over(project: ProjectOnDisk) -> None:
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
