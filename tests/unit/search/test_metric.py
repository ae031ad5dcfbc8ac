"""Tests of the single rule that selects the metric."""

from __future__ import annotations

import contextlib
import math
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hopsml.cluster.driver.run_state import Change, RunState
from hopsml.cluster.shared.plain import result_as_dict
from hopsml.errors import ArgumentError
from hopsml.experiment.run_role import NestedRun
from hopsml.experiment.searches import executors, result
from hopsml.experiment.searches.groups import GroupExecutor, _Group
from hopsml.search.dispatch.events import FormGroup, ValuesReported
from hopsml.search.messages import RunTrial
from hopsml.search.metric import finite_or_none, is_misspelt, name_of, why_no_value
from hopsml.tracking import catalog
from hopsml.training.trials.trial_reports import LaneChannel, TrialReporter, score_of
from tests.unit.tracking.test_catalog import make_run

pytestmark = pytest.mark.fast

Values = dict[str, Any]
# Requested metric, reported values, name of the selected metric; without that name, no value is selected.
RULE: list[tuple[str, Values, str]] = [
    ("loss", {"loss": 1.0}, "loss"),
    ("loss", {"loss": 1.0, "metric": 2.0}, "loss"),
    ("loss", {"accuracy": 1.0}, "loss"),
    ("", {"accuracy": 1.0}, "accuracy"),
    ("", {"metric": 1.0, "loss": 2.0}, "metric"),
    ("", {"accuracy": 1.0, "loss": 2.0}, "metric"),
    ("", {}, "metric"),
]


@pytest.mark.parametrize(("requested", "values", "name"), RULE)
def test_metric_is_the_requested_the_only_or_the_one_named_metric(requested: str, values: Values, name: str) -> None:
    assert name_of(requested, values) == name


def worker_value_from_result(requested: str, values: Values) -> float | None:
    """Return the worker's value of a trial's result."""
    with contextlib.suppress(ArgumentError):
        return score_of(values, requested)
    return None


def worker_value_from_report(requested: str, values: Values) -> float | None:
    """Return the worker's value of a report."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        reporter = TrialReporter(RunTrial(0, 1, trial_id="a", config=b"", metric=requested), LaneChannel(ours))
        reporter.report(1, values)
    return reporter.history[0][1] if reporter.history else None


def driver_value_from_lane(requested: str, values: Values) -> float | None:
    """Return the driver's value of a report from a trial slot."""
    return executors._searched(values, requested)[1]


def driver_value_from_group(requested: str, values: Values) -> float | None:
    """Return the driver's value of a report from a distributed trial."""
    plan = SimpleNamespace(standing=NestedRun("trials"))
    executor = GroupExecutor(RunState("app_1", 0), None, plan, str, requested, 1)  # type: ignore[arg-type]
    group = _Group(FormGroup(0, 1, {}, 2, 2), None, 0.0)  # type: ignore[arg-type]
    executor._on_trial(group, Change("report", 0, metrics=values, step=1))
    while (news := executor.get(0.0)) is not None:
        if isinstance(news.event, ValuesReported):
            return news.event.value
    return None


ASKING: list[Callable[[str, Values], float | None]] = [
    worker_value_from_result,
    worker_value_from_report,
    driver_value_from_lane,
    driver_value_from_group,
]


@pytest.mark.parametrize("ask", ASKING)
@pytest.mark.parametrize(("requested", "values", "name"), RULE)
def test_worker_and_driver_select_the_same_metric(
    ask: Callable[[str, Values], float | None], requested: str, values: Values, name: str
) -> None:
    assert ask(requested, values) == values.get(name)


@pytest.mark.parametrize("ask", ASKING[2:])
@pytest.mark.parametrize("value", [math.nan, math.inf, "high", True, None])
def test_value_that_is_not_a_finite_number_is_not_passed_to_the_search(
    ask: Callable[[str, Values], float | None], value: Any
) -> None:
    assert ask("", {"loss": value}) is None and finite_or_none(value) is None


@pytest.mark.parametrize(("requested", "values", "name"), RULE)
def test_missing_metric_value_message_names_the_metric(requested: str, values: Values, name: str) -> None:
    text, _ = why_no_value(requested, {key: None for key in values}, None)
    assert f"the metric '{name}'" in text


@pytest.mark.parametrize(
    ("requested", "values", "name"), [*RULE, ("f1", {"label": "x", "good": True, "accuracy": 0.5}, "f1")]
)
def test_run_table_shows_the_metric_or_the_first_number(
    tmp_path: Path, requested: str, values: Values, name: str
) -> None:
    directory = make_run(tmp_path, "app_1", spec={"metric_key": requested})
    directory.write_json(directory.outputs_json, result_as_dict(values, "/log"))
    first = next((pair for pair in values.items() if isinstance(pair[1], float)), None)
    assert catalog.read(directory).main_metric == ((name, values[name]) if name in values else first)


def test_run_table_shows_the_metric_of_its_search(tmp_path: Path) -> None:
    record = {"search": {"metric": "accuracy"}}
    directory = make_run(tmp_path, "app_1", **record)
    directory.write_json(directory.outputs_json, {"loss": 9.0, "accuracy": 0.5, "log": "/log", "value": 0.5})
    assert catalog.read(directory).main_metric == ("accuracy", 0.5)
    for number, (search, name) in enumerate([({"metric": "accuracy"}, "accuracy"), ({"metric": ""}, "metric")]):
        going_on = make_run(tmp_path, f"app_{number + 2}", ended=None, search=search)
        going_on.write_json(going_on.best_json, {"number": 1, "value": 0.25})
        assert catalog.read(going_on).main_metric == (name, 0.25)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"state": "completed", "outputs": {"accuracy": 0.5, "loss": 1.0}}, {"accuracy": 0.5, "loss": 1.0}),
        ({"state": "completed", "outputs": 0.5}, {"metric": 0.5}),  # as the predecessor called it
        ({"state": "completed", "outputs": None}, {"accuracy": 0.25}),  # it has reported, and returned nothing
        ({"state": "stopped", "outputs": None}, {"accuracy": 0.25}),
    ],
)
def test_trial_outputs_are_a_dict_keyed_by_metric_name(row: Values, expected: Values) -> None:
    row = {**row, "value": 0.25, "config": {"lr": 1}}
    assert result.outputs_of(row, "accuracy") == expected
    assert result.search_summary([row], "accuracy") == {
        "combinations": [{"parameters": {"lr": 1}, "outputs": expected}]
    }


@pytest.mark.parametrize(
    ("requested", "known", "misspelt"),
    [
        ("acuracy", "accuracy", True), ("Accuracy", "accuracy", True), ("val_acuracy", "val_accuracy", True),
        ("valaccuracy", "val_accuracy", True), ("val-loss", "val_loss", True), ("precission", "precision", True),
        ("accuracy", "accuracy", False), ("accuracy", "val_accuracy", False), ("train_loss", "val_loss", False),
        ("mse", "mae", False), ("auc", "acc", False), ("rmse", "mse", False), ("f1", "f2", False),
        ("los", "loss", True), ("lsos", "loss", True), ("val_los", "val_loss", True), ("losss", "loss", True),
        ("lost", "loss", True), ("acc", "ac", True), ("rsme", "rmse", True),
        ("map", "mpa", False), ("ll", "l", False), ("mape", "mae", False), ("map", "mae", False),
        ("msle", "mse", False), ("cost", "loss", False), ("f1", "f", False), ("top1", "top11", False),
        ("accuracy_top1", "accuracy_top5", False), ("precision", "recall", False), ("loss", "batch_loss", False),
    ],
)  # fmt: skip
def test_misspelt_metric_name_is_distinguished_from_another_metric(requested: str, known: str, misspelt: bool) -> None:
    assert is_misspelt(requested, known) is misspelt


@pytest.mark.parametrize("ask", ASKING[1:])
def test_batch_values_of_keras_are_not_compared_by_the_search(
    ask: Callable[[str, Values], float | None],
) -> None:
    """Keras's running values have different names, also if the search names no metric."""
    assert ask("", {"batch_loss": 0.5}) is None and ask("loss", {"batch_loss": 0.5}) is None
    assert ask("", {"loss": 0.25}) == ask("", {"loss": 0.25, "batch_loss": 0.5}) == 0.25
    assert ask("batch_loss", {"batch_loss": 0.5}) == 0.5
