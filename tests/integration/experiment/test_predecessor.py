"""Tests of the predecessor's searches: call forms, checks, files and results."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopsml import experiment, hdfs, model
from hopsml.errors import ArgumentError, ArgumentTypeError, RunError
from hopsml.experiment import predecessor
from hopsml.maggy import Searchspace
from hopsml.maggy.config import HyperparameterOptConfig
from hopsml.model.description import checked_metrics
from hopsml.search import registry
from tests.helpers.local_application import warm_application

pytestmark = pytest.mark.local

QUIET: dict[str, Any] = {"progress": False, "keep_warm": 60.0, "seed": 3, "max_executors": 2}


store = warm_application(lambda: experiment.grid_search(lambda x: x, {"x": [1, 2]}, **QUIET))


def folder(url: str) -> Path:
    return Path(url.removeprefix("file://"))


def product(a: int, b: int) -> dict[str, Any]:
    print("hello from", a, b)
    return {"accuracy": np.float32(a * b), "loss": 1.0 / b, "note": "kept"}


def test_grid_search_returns_and_writes_the_results_of_the_predecessor(store: Path) -> None:
    best_dir, best_config, outputs = experiment.grid_search(
        product, {"a": [1, 2], "b": [5, 3]}, direction="max", optimization_key="accuracy", name="grid", **QUIET
    )
    assert best_config == {"a": 2, "b": 5} and outputs["accuracy"] == 10.0 and outputs["note"] == "kept"
    assert best_dir.endswith("/a=2&b=5/events") and outputs["log"] == best_dir.replace("/events", "/output.log")
    root = folder(best_dir).parents[1]
    assert root.parent == store / "Experiments"
    for a, b in ((1, 5), (1, 3), (2, 5), (2, 3)):
        left = root / f"a={a}&b={b}"
        assert json.loads((left / ".hparams.json").read_text()) == {"a": a, "b": b}
        assert json.loads((left / ".outputs.json").read_text())["accuracy"] == a * b
        assert float((left / ".metric").read_text()) == a * b
        assert (left / "output.log").read_text() == f"hello from {a} {b}\n"
    summary = json.loads((root / ".summary.json").read_text())["combinations"]
    assert [one["parameters"] for one in summary] == [{"a": a, "b": b} for a, b in ((1, 5), (1, 3), (2, 5), (2, 3))]
    assert {one["outputs"]["loss"] for one in summary} == {1 / 5, 1 / 3}
    assert json.loads((root / "run.json").read_text())["verb"] == "grid_search"


def test_random_search_accepts_old_argument_names_and_resources(store: Path) -> None:
    hdfs.dump("searched", "Resources/x")
    result = experiment.random_search(
        map_fun=lambda n, x: -abs(x - 0.5) - n, boundary_dict={"n": [1, 3], "x": [0.0, 1.0]}, samples=6,
        versioned_resources=["Resources/x"], **QUIET,
    )  # fmt: skip
    assert hdfs.load(f"{result.run_dir}/resources/x") == b"searched"
    _, config, outputs = result
    assert len(result.trials) == 6 and set(result.trials["params_n"]) <= {1, 2, 3}
    assert outputs["metric"] == result.value == max(result.trials["value"]) and set(config) == {"n", "x"}


def test_random_search_runs_each_combination_once(store: Path) -> None:
    result = experiment.random_search(lambda n: n, {"n": [1, 3]}, "MIN", 10, **QUIET)
    assert sorted(result.trials["params_n"]) == [1, 2, 3] and result.value == 1


def test_differential_evolution_writes_one_folder_per_generation(store: Path) -> None:
    result = experiment.differential_evolution(
        lambda x, kind: (x - 0.25) ** 2 + (kind == "b"), {"x": [1.0, 0.0], "kind": ["a", "b"]}, direction="Min",
        generations=2, population=4, **QUIET,
    )  # fmt: skip
    best_dir, config, _ = result
    root = folder(result.run_dir)
    assert {path.name for path in root.glob("generation.*")} >= {"generation.0", "generation.1"}
    assert folder(best_dir).parents[1].name.startswith("generation.") and folder(best_dir).parents[2] == root
    assert result.value == min(result.trials["value"]) and config["kind"] in ("a", "b")


def saves(x: int) -> int:
    from hopsml import tensorboard

    folder = Path(tensorboard.logdir(), "model")
    folder.mkdir()
    (folder / "weights.txt").write_text(str(x))
    return x


@pytest.mark.parametrize(
    "search",
    [
        pytest.param(
            lambda: experiment.launch(saves, {"x": [3]}, progress=False, keep_warm=60), marks=pytest.mark.variant
        ),
        lambda: experiment.grid_search(saves, {"x": [1, 3]}, **QUIET),
        pytest.param(
            lambda: experiment.random_search(saves, {"x": [1, 3]}, samples=9, **QUIET), marks=pytest.mark.variant
        ),
        pytest.param(
            lambda: experiment.differential_evolution(saves, {"x": [1, 3]}, generations=2, population=4, **QUIET),
            marks=pytest.mark.variant,
        ),
        pytest.param(
            lambda: experiment.search(saves, {"x": ("INTEGER", [1, 3])}, searcher="random", num_trials=4, **QUIET),
            marks=pytest.mark.variant,
        ),
    ],
    ids=["launch", "grid", "random", "evolution", "search"],
)
def test_logdir_of_the_best_trial_contains_its_files(store: Path, search: Callable[[], Any]) -> None:
    best_dir, *_, outputs = search()
    version = model.export(best_dir + "/model", "from_search")
    assert version is not None
    assert (folder(version.files_url) / "weights.txt").read_text() == str(outputs["metric"])
    assert hdfs.isdir(best_dir)


def test_evolutionary_search_accepts_a_session_as_first_argument(store: Path) -> None:
    result = experiment.evolutionary_search(session(), lambda x: x, {"x": [0, 9]}, generations=2, popsize=4, **QUIET)
    assert result.value == max(result.trials["value"])


def session() -> Any:
    """Something that is called as Spark's own class is."""
    return type("SparkSession", (), {"__module__": "pyspark.sql.session"})()


@pytest.mark.parametrize(
    ("returned", "key", "message"),
    [
        (lambda: {"loss": 1.0}, "metric", "'metric'"),  # the default does not match the one key that there is
        pytest.param(lambda: {"loss": 1.0, "accuracy": "high"}, "accuracy", "number", marks=pytest.mark.variant),
        (lambda: None, "metric", "returned nothing"),
        pytest.param(lambda: "no/such/file", "metric", "number|file", marks=pytest.mark.variant),
    ],
)
def test_unusable_trial_result_fails_the_search(store: Path, returned: Any, key: str, message: str) -> None:
    with pytest.raises(RunError, match=message):
        experiment.grid_search(lambda x: returned(), {"x": [1, 2]}, optimization_key=key, retries=0, **QUIET)


@pytest.mark.parametrize(
    ("verb", "table", "options", "message"),
    [
        ("grid_search", {"x": [1]}, {"direction": "up"}, "'max' or 'min'"),
        ("grid_search", {"x": []}, {}, "empty"),
        ("grid_search", [1, 2], {}, "dict of lists"),
        ("grid_search", {"x": [1]}, {"samples": 3}, "no argument 'samples'"),
        ("random_search", {"x": [1, 2, 3]}, {}, "two elements"),
        ("random_search", {"x": [2, 1]}, {}, "less than"),
        ("random_search", {"x": ["a", "b"]}, {}, "integers or floats"),
        ("random_search", {"x": [0, 1]}, {"samples": 0}, "at least 1"),
        ("differential_evolution", {"x": [0.0, 1.0]}, {"population": 3}, "more than 3"),
        ("differential_evolution", {"x": [0.0, 1.0]}, {"generations": 1}, "more than 1"),
        ("differential_evolution", {"x": [0.0, 1.0]}, {"generation": 9}, "no argument"),
    ],
)
def test_invalid_search_arguments_are_refused(verb: str, table: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises((ArgumentError, ArgumentTypeError), match=message):
        getattr(experiment, verb)(lambda x: x, table, **options)


@pytest.mark.fast
@pytest.mark.parametrize(
    "call",
    [
        lambda: experiment.random_search(abs, {"x": [2, 1]}),
        lambda: experiment.random_search(abs, {"x": [1, 2, 3]}),
        lambda: experiment.differential_evolution(abs, {"x": [0.0, 1.0]}, population=3),
        lambda: experiment.differential_evolution(abs, {"x": [0.0, 1.0]}, generations=1),
        lambda: experiment.collective_all_reduce(lambda: 1, num_workers=2, evaluator=True),
        lambda: Searchspace(x=("DOUBLE", [1.0, 0.0])),
        lambda: HyperparameterOptConfig(0, None, Searchspace()),
        lambda: HyperparameterOptConfig(1.5, None, Searchspace()),
        lambda: registry.searcher("asha", Searchspace(x=("DOUBLE", [0.0, 1.0])), seed=1, num_trials=2),
        lambda: checked_metrics([1]),
        lambda: checked_metrics({1: 1.0}),
        lambda: checked_metrics({"accuracy": "high"}),
    ],
)
def test_refusals_by_assertion_in_the_predecessor_are_assertion_errors(call: Callable[[], Any]) -> None:
    with pytest.raises(AssertionError) as caught:
        call()
    assert isinstance(caught.value, (ArgumentError, ArgumentTypeError))


def test_combination_folder_names_are_encoded_and_bounded() -> None:
    assert predecessor.combination_name({"a": 1, "b": "x"}, 0, 0) == "a=1&b=x"
    assert predecessor.combination_name({"path": "data/set"}, 0, 0) == "path=data%2Fset"
    assert predecessor.combination_name({"a": 1}, 3, 1) == "a=1.2"
    long = [predecessor.combination_name({"text": letter * 400}, 0, 0) for letter in "äb"]
    assert all(len(name.encode()) <= 200 for name in long) and len(set(long)) == 2
