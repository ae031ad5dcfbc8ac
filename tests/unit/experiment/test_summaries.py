"""Tests of the summaries of runs and searches: what they name, and the rule for values that were reported, too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hopsml.core.states import Lifecycle
from hopsml.experiment.result import Result
from hopsml.experiment.searches.result import BestTrial, SearchResult, differing_trials, errors_by_cause
from hopsml.search.metric import differing_reports

pytestmark = pytest.mark.fast
OTHER_DATA = ". If it was measured on other data, such as a test set, return it under a name of its own"


def run_result(folder: Path, returned: dict[str, Any], reported: dict[str, Any]) -> Result:
    worker = {"rank": 0, "host": "node-1", "executor": "1", "gpu_indices": [], "metrics": reported}
    return Result(
        f"file://{folder}/events", returned, name="digits", run_id="app_1", run_dir=f"file://{folder}",
        state=Lifecycle.FINISHED, seconds=12.5, workers=[worker], ring_order=["chief:0"], steps_per_second=2.0,
        in_force={"workers": 1, "formed": False, "trained_alone": 0},
    )  # fmt: skip


def row(number: int, state: str = "completed", value: float | None = 0.5, error: str = "") -> dict[str, Any]:
    return {"number": number, "state": state, "value": value, "step": 3, "error": error, "config": {"lr": 0.1 * number}}


def search_result(**facts: Any) -> SearchResult:
    rows = [
        row(0),
        row(1, value=0.75),
        row(2, "failed", None, "ValueError: no"),
        row(3, "failed", None, "ValueError: no"),
    ]
    best = BestTrial(
        1, "lr=0.1", {"lr": 0.1}, 0.75, 3, {"accuracy": 0.75, "loss": 2.0}, "file:///p/app_2/trials/lr=0.1"
    )
    known: dict[str, Any] = {
        "name": "search", "run_id": "app_2", "run_dir": "file:///p/app_2", "state": Lifecycle.FINISHED, "seconds": 90.0,
        "rows": rows, "metric": "accuracy", "direction": "max", "reason": "complete",
        "counts": {"waiting": 0, "running": 0, "paused": 0, "completed": 2, "stopped": 0, "failed": 2}, **facts,
    }  # fmt: skip
    return SearchResult(best, **known)


@pytest.mark.parametrize(
    ("returned", "reported", "note"),
    [
        ({"loss": 0.5}, {"loss": 0.5}, ""),
        ({"loss": 0.5}, {"loss": 0.5 + 1e-9, "accuracy": 1.0}, ""),
        ({"loss": 0.5}, {}, ""),
        ({"loss": float("nan")}, {"loss": 0.5}, ""),
        ({"loss": "low"}, {"loss": 0.5}, ""),
        (
            {"loss": 0.5, "accuracy": 0.9},
            {"loss": 0.25, "accuracy": 0.9},
            "loss: 0.5 was returned, 0.25 was reported last; the returned value is the result" + OTHER_DATA,
        ),
    ],
)
def test_returned_value_that_differs_from_the_last_report_is_noted(
    returned: dict[str, Any], reported: dict[str, Any], note: str
) -> None:
    assert differing_reports(returned, reported) == note


def test_printed_results_contain_no_secret_and_the_caller_has_it(tmp_path: Path) -> None:
    result = run_result(tmp_path, {"loss": 0.5, "refresh_token": "hush-93-wolves", "url": "s3://a:hush-93@b/c"}, {})
    assert result.metrics["refresh_token"] == "hush-93-wolves"
    for shown in (result.summary(), result.json(), repr(result), result._repr_html_()):
        assert "hush-93" not in shown and "(redacted)" in shown
    best = BestTrial(
        1, "a", {"lr": 0.1}, 0.75, 3, {"accuracy": 0.75, "auth_token": "hush-93-wolves"}, "file:///p/app_2/a"
    )
    found = search_result()
    found.best = best
    assert "hush-93" not in found.summary()


def test_returned_value_is_the_result_of_a_run_and_the_summary_has_a_note(tmp_path: Path) -> None:
    result = run_result(tmp_path, {"loss": 0.5, "log": "file:///log"}, {"loss": 0.25})
    assert result.metrics == {"loss": 0.5}
    lines = [" ".join(line.split()) for line in result.summary().splitlines()]
    assert "loss 0.5000" in lines
    assert "note loss: 0.5 was returned, 0.25 was reported last; the returned value is the result" + OTHER_DATA in lines
    assert "0.25 was reported last" in result._repr_html_()
    assert "note" not in run_result(tmp_path, {"loss": 0.5}, {"loss": 0.5}).summary()


def test_summary_has_a_note_on_returned_values_that_are_nan(tmp_path: Path) -> None:
    nan = float("nan")
    (note,) = run_result(tmp_path, {"loss": nan, "accuracy": 0.5}, {"loss": nan}).notes
    assert note == "loss is NaN: the training may have diverged, or its data contain NaN"
    assert run_result(tmp_path, {"loss": nan, "mae": nan}, {}).notes[0].startswith("loss, mae are NaN")
    assert not run_result(tmp_path, {"loss": float("inf"), "name": "nan"}, {}).notes


def test_summary_of_a_function_without_result_has_no_metric(tmp_path: Path) -> None:
    result = run_result(tmp_path, {"metric": None}, {})
    result.steps_per_second = 0.0
    summary = result.summary()
    assert not [line for line in summary.splitlines() if line.startswith("metric")]
    assert "speed" in summary and "unknown: fewer than two steps were reported by hopsml.report" in summary
    assert json.loads(result.json())["metric"] is None, "as the record, and as the predecessor's"


def test_summary_of_a_search_has_state_counts_best_trial_errors_and_directories() -> None:
    *lines, last = search_result().summary().splitlines()
    text = [" ".join(line.split()) for line in lines]
    assert text == [
        "state FINISHED after 90.0 s",
        "trials 4: 2 completed, 2 failed",
        "error 2 trials: ValueError: no",
        "best trial 1 (lr=0.1), last report at step 3",
        "accuracy 0.7500 (highest)",
        "lr 0.1000",
        "loss 2.0000",
        "run directory file:///p/app_2",
        "best trial file:///p/app_2/trials/lr=0.1",
        "events file:///p/app_2/trials",
    ]
    assert json.loads(last)["best_config"] == {"lr": 0.1} and json.loads(last)["run_id"] == "app_2"
    stopped = search_result(reason="deadline", unrecorded={"status.json": "no space"}).summary()
    assert stopped.startswith("WARNING") and "after 90.0 s, ended by its deadline" in stopped


def test_html_of_a_search_has_the_facts_of_its_summary() -> None:
    page = search_result(unrecorded={"status.json": "no space"})._repr_html_()
    for words in ("4: 2 completed, 2 failed", "2 trials: ValueError: no", "could not be written"):
        assert words in page, words


def test_trials_whose_returned_value_differs_from_their_last_report_are_noted_once() -> None:
    rows = [row(0), row(1), row(2), row(3, "stopped")]
    curves = {0: [(1, 0.5)], 1: [(1, 0.1), (2, 0.25)], 2: [(1, 0.125)], 3: [(1, 0.1)]}
    (note,) = differing_trials(rows, curves, "loss")
    assert note.startswith("trial 1: loss: 0.5 was returned, 0.25 was reported last") and "1 other trial" in note
    assert differing_trials(rows[:1], curves, "loss") == []
    assert search_result(curves={1: [(3, 0.5)]}).notes == [
        "trial 1: accuracy: 0.75 was returned, 0.5 was reported last; the returned value is the result" + OTHER_DATA
    ]


def test_errors_of_trials_are_counted_by_their_cause() -> None:
    rows = [row(number, "failed", None, f"ValueError: {number % 5}") for number in range(9)]
    assert errors_by_cause(rows) == [
        "2 trials: ValueError: 0",
        "2 trials: ValueError: 1",
        "2 trials: ValueError: 2",
        "3 more with other errors",
    ]
    assert errors_by_cause([row(0)]) == []
