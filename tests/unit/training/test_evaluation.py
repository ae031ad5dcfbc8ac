"""Tests of an evaluator's decisions: next checkpoint, best one, request to end the training; pure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hopsml.cluster.shared.spec import Evaluation, RunSpec
from hopsml.cluster.worker.context import WorkerContext
from hopsml.storage import checkpoints
from hopsml.storage.run_dir import RunDir
from hopsml.training.evaluation import (
    SILENT_S,
    CheckpointEvaluation,
    Evaluator,
    best_result,
    is_driver_lost,
    missing_metric_message,
    next_checkpoint_step,
    stagnates,
)

pytestmark = pytest.mark.fast


def judged(*values: float | None) -> list[CheckpointEvaluation]:
    return [
        CheckpointEvaluation(
            10 * number, {} if value is None else {"metric": value}, problem="gone" if value is None else ""
        )
        for number, value in enumerate(values, 1)
    ]


def test_evaluator_selects_each_checkpoint_once_in_either_order() -> None:
    assert (
        next_checkpoint_step([30, 10, 20], [10], "oldest") == 20
        and next_checkpoint_step([30, 10, 20], [10], "newest") == 30
    )
    assert next_checkpoint_step([10], [10], "oldest") is None is next_checkpoint_step([], [], "newest")


def test_missing_metric_error_lists_the_available_metrics() -> None:
    found = [
        CheckpointEvaluation(10, {"loss": 0.5, "accuracy": 0.25}),
        CheckpointEvaluation(20, {"loss": 0.25, "accuracy": float("nan")}),
    ]
    text = missing_metric_message(found, Evaluation(run="r", patience=5))
    assert "the metric 'metric'" in text and "they have: accuracy, loss." in text and "pass metric='accuracy'" in text
    assert "patience=5 has no effect" in text and "patience" not in missing_metric_message(found, Evaluation(run="r"))
    assert "they have: nothing" in missing_metric_message([CheckpointEvaluation(10)], Evaluation(run="r"))
    for metric in ("loss", "accuracy"):
        assert missing_metric_message(found, Evaluation(run="r", metric=metric)) == ""
    text = missing_metric_message(judged(float("nan")), Evaluation(run="r"))
    assert "they have: metric" in text and "check why it is NaN or infinite" in text and "pass metric=" not in text
    assert (
        missing_metric_message([], Evaluation(run="r"))
        == missing_metric_message(judged(None), Evaluation(run="r"))
        == ""
    )


def test_best_evaluation_is_the_earliest_of_equal_finite_values() -> None:
    requested = Evaluation(run="r")
    best = best_result(judged(0.1, 0.5, None, 0.5, float("nan")), requested)
    assert best is not None and best.step == 20
    least = best_result(judged(0.4, 0.1, 0.3), Evaluation(run="r", direction="min"))
    assert least is not None and least.step == 20
    assert best_result(judged(None, float("inf")), requested) is None is best_result([], requested)


@pytest.mark.parametrize(
    ("values", "patience", "ends"),
    [
        ((0.1, 0.5, 0.4, 0.5), 2, True),
        ((0.1, 0.5, 0.4, None), 2, False),
        ((0.5, 0.4, 0.6), 2, False),
        ((0.5, 0.1, 0.1, 0.1), None, False),
        ((), 1, False),
    ],
)
def test_evaluation_stagnates_after_patience_evaluations_without_improvement(
    values: tuple[float | None, ...], patience: int | None, ends: bool
) -> None:
    assert stagnates(judged(*values), Evaluation(run="r", patience=patience)) is ends


def test_run_without_an_end_is_lost_when_its_driver_is_lost() -> None:
    day_s = 86400.0
    assert (
        is_driver_lost(False, 1.0, 0.0)
        and not is_driver_lost(True, None, day_s)
        and not is_driver_lost(None, None, 10.0)
    )
    assert is_driver_lost(None, None, day_s), "of another machine, and nothing has changed for a day"
    assert not is_driver_lost(None, SILENT_S / 2, day_s) and is_driver_lost(None, SILENT_S, 0.0)
    assert is_driver_lost(True, SILENT_S, 0.0), "its process goes on, and has left the run without an end"


def test_recommitted_checkpoint_is_evaluated_after_a_corrupt_one(tmp_path: Path) -> None:
    run = RunDir(str(tmp_path / "Experiments" / "app_1"))
    run.write_run({"driver_process": {}})
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "weights").write_text("0.5")
    url = checkpoints.commit(tmp_path / "a", run.checkpoints, 10)
    Path(url, "weights").write_text("9.5")
    spec = RunSpec(evaluation=Evaluation(run=run.url))
    places = {"events_dir": tmp_path, "checkpoint_dir": tmp_path, "export_dir": tmp_path}
    context = WorkerContext("e", 0, 0, 1, 0, "chief", "evaluating", tmp_path / "cwd", **places, spec=spec)
    evaluator = Evaluator(lambda folder: float((folder / "weights").read_text()), {}, context)
    for _ in range(2):
        evaluator.evaluate_due()
        assert [(one.step, bool(one.problem)) for one in evaluator.judgements] == [(10, True)]
    checkpoints.commit(tmp_path / "a", run.checkpoints, 10)
    evaluator.evaluate_due()
    assert [(one.metrics, one.problem) for one in evaluator.judgements] == [({"metric": 0.5}, "")]
    stored = json.loads(Path(run.evaluations, "step-000000010.json").read_text())
    assert stored["metrics"] == {"metric": 0.5} and not stored["problem"]
