"""Maggy's call forms: ``lagom`` of both kinds, optimizers, own optimizers, ablation without Keras, results and files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hopsml.errors import ArgumentError, ArgumentTypeError
from hopsml.maggy import Searchspace, Trial, experiment
from hopsml.maggy.ablation import AblationStudy
from hopsml.maggy.config import AblationConfig, HyperparameterOptConfig, OptimizationConfig, TorchDistributedConfig
from hopsml.maggy.optimizer import GP, TPE, AbstractOptimizer, Asha, RandomSearch
from hopsml.search.trial import trial_id
from tests.experiment.conftest import local_application

pytestmark = pytest.mark.fast

QUIET: dict[str, Any] = {"progress": False, "keep_warm": 60.0, "seed": 3, "max_executors": 2}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with local_application(tmp_path_factory.mktemp("maggy")) as project:
        experiment.lagom(lambda x: x, searchspace=space(), optimizer="randomsearch", num_trials=4, **QUIET)
        yield project


def space() -> Searchspace:
    return Searchspace(x=("DOUBLE", [0.0, 1.0]))


def newest(store: Path) -> Path:
    return max((store / "Experiments").iterdir(), key=lambda path: int(path.name.rpartition("_")[2]))


def train(x: float, reporter: Any) -> dict[str, float]:
    for step in range(3):
        reporter.broadcast(x * step, step)
    reporter.log(f"x is {x}")
    return {"accuracy": x, "loss": 1 - x}


def test_the_first_form_its_result_and_its_files(store: Path) -> None:
    result = experiment.lagom(
        train,
        "demo",
        "optimization",
        space(),
        "randomsearch",
        "max",
        6,
        optimization_key="accuracy",
        es_policy="none",
        **QUIET,
    )
    values = result["metric_list"]
    assert result["num_trials"] == len(values) == 6 and result["early_stopped"] == 0
    assert result["best_val"] == max(values) and result["worst_val"] == min(values)
    assert result["avg"] == pytest.approx(sum(values) / 6)
    assert result["best_config"] == result["best_hp"] == {"x": result["best_val"]}
    assert result["best_id"] == trial_id(result["best_config"])
    root = newest(store)
    assert json.loads((root / "result.json").read_text())["best_id"] == result["best_id"]
    about = json.loads((root / "maggy.json").read_text())
    assert (
        about["name"] == "demo" and about["direction"] == "max" and about["searchspace"]["x"] == ["DOUBLE", [0.0, 1.0]]
    )
    assert "6/6" in (root / "maggy.log").read_text()
    left = root / result["best_id"]
    assert json.loads((left / "trial.json").read_text())["metric_history"][0] == 0.0
    assert (left / "output.log").read_text() == f"x is {result['best_val']}\n"
    for name in (".hparams.json", ".outputs.json", ".metric"):
        assert (left / name).exists()


def test_configs_and_the_whole_configuration_at_once(store: Path) -> None:
    def whole(hparams: dict[str, Any], model: str, reporter: Any) -> float:
        assert model == "the model"
        return float(hparams["x"])

    config = HyperparameterOptConfig(3, RandomSearch(), space(), direction="min", model="the model")
    assert OptimizationConfig is HyperparameterOptConfig
    first = experiment.lagom(whole, config, **QUIET)
    second = experiment.lagom(train_fn=whole, config=config, **QUIET)
    assert first["metric_list"] == second["metric_list"] and first["best_val"] == min(first["metric_list"])


@pytest.mark.parametrize(
    ("optimizer", "trials", "expected"),
    [
        ("GridSearch", 1, 4),  # fixes the number by itself
        (None, 2, 2),
        (TPE(num_warmup_trials=2), 4, 4),
        (GP(num_warmup_trials=2, pruner="hyperband", pruner_kwargs={"max_budget": 3, "n_iterations": 1}), 1, 4),
    ],
)
def test_optimizers(store: Path, optimizer: Any, trials: int, expected: int) -> None:
    def function(n: int = 7, act: str = "a", budget: float = 1) -> float:
        return float(n) + budget / 10

    searched = (
        Searchspace() if optimizer is None else Searchspace(n=("DISCRETE", [1, 2]), act=("CATEGORICAL", ["a", "b"]))
    )
    result = experiment.lagom(function, searchspace=searched, optimizer=optimizer, num_trials=trials, **QUIET)
    assert result["num_trials"] == expected


def test_asha_gives_a_budget_to_short_trials(store: Path) -> None:
    result = experiment.lagom(
        lambda x, budget: x + budget / 1000, searchspace=space(), optimizer=Asha(), num_trials=4, **QUIET
    )
    rows = [json.loads(path.read_text()) for path in newest(store).glob("*/trial.json")]
    budgets = sorted(row["params"]["budget"] for row in rows)
    assert budgets[:4] == [1, 1, 1, 1] and budgets[-1] == 4 and result["num_trials"] == len(rows)


class Falling(AbstractOptimizer):
    """Halves what came of the trial before."""

    def initialize(self) -> None:
        self.given = 0

    def get_suggestion(self, trial: Trial | None = None) -> Trial | str | None:
        if self.given == self.num_trials:
            return None
        if self.trial_store:
            return "IDLE"
        self.given += 1
        return Trial({"x": 1.0 if not self.final_store else self.final_store[-1].final_metric / 2})  # type: ignore[operator]

    def finalize_experiment(self, trials: list[Trial]) -> None:
        assert len(trials) == self.num_trials


def test_an_own_optimizer(store: Path) -> None:
    result = experiment.lagom(
        lambda x: x, searchspace=space(), optimizer=Falling(), num_trials=4, direction="min", **QUIET
    )
    assert result["metric_list"] == [1.0, 0.5, 0.25, 0.125] and result["best_val"] == 0.125


def test_ablation(store: Path) -> None:
    class Layer:
        def __init__(self, name: str) -> None:
            self.name = name

    def data(rows: int, ablated_feature: str | None = None) -> list[str]:
        return [name for name in ("age", "fare", "sex") if name != ablated_feature] * rows

    def custom() -> str:
        return "another"

    study = AblationStudy("titanic", 1, label_name="survived", dataset_generator=data)
    study.features.include("age", "fare")
    study.features.exclude("fare")
    study.model.set_base_model_generator(lambda: "whole")
    study.model.add_custom_model_generator(custom, "other")

    def function(dataset_function: Any, model_function: Any, reporter: Any) -> float:
        return len(dataset_function(2)) + (10 if model_function() == "another" else 0)

    result = experiment.lagom(function, experiment_type="ablation", ablation_study=study, ablator="loco", **QUIET)
    table = {row["without"]: (row["value"], row["effect"]) for row in result["effects"]}
    assert table == {"nothing": (6.0, 0.0), "age": (4.0, -2.0), "custom: other": (16.0, 10.0)}
    by_config = experiment.lagom(function, AblationConfig(study), **QUIET)
    assert by_config["effects"] == result["effects"]
    assert json.loads((newest(store) / "result.json").read_text())["effects"][1]["effect"] == -2.0


@pytest.mark.parametrize(
    ("given", "kind", "said"),
    [
        ({"optimizer": "magic"}, KeyError, "there are"),
        ({"optimizer": 3}, TypeError, "name, an optimizer"),
        ({"direction": "up"}, ValueError, "'max' or 'min'"),
        ({"es_policy": "mean"}, ValueError, "'median'"),
        ({"experiment_type": "contest"}, ValueError, "'ablation'"),
        ({"experiment_type": "ablation"}, TypeError, "AblationStudy"),
        ({"hb": 3}, TypeError, "no argument 'hb'"),
        ({"optimizer": Asha(resource_max=64), "num_trials": 3}, ValueError, "trials"),
    ],
)
def test_mistakes(given: dict[str, Any], kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        experiment.lagom(
            lambda x, budget=0: x, **{"searchspace": space(), "optimizer": "randomsearch", "num_trials": 2, **given}
        )


def test_what_is_not_there() -> None:
    with pytest.raises(ArgumentError, match="PyTorch"):
        experiment.lagom(lambda module: 1, TorchDistributedConfig())
    with pytest.raises(ArgumentTypeError, match="a config says everything"):
        experiment.lagom(lambda x: x, HyperparameterOptConfig(1, None, space()), num_trials=3)
    study = AblationStudy("a", 1, "b")
    study.model.set_base_model_generator(lambda: 1)
    with pytest.raises(ArgumentError, match="no feature store"):
        experiment.lagom(lambda x: x, AblationConfig(study))
