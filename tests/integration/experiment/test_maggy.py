"""Tests of Maggy's call forms: both kinds of ``lagom``, optimizers, ablation without Keras, results and files."""

from __future__ import annotations

import dataclasses
import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopsml.errors import ArgumentError, ArgumentTypeError
from hopsml.maggy import Searchspace, Trial, experiment
from hopsml.maggy.ablation import AblationStudy
from hopsml.maggy.config import (
    AblationConfig,
    BaseConfig,
    HyperparameterOptConfig,
    LagomConfig,
    OptimizationConfig,
    TfDistributedConfig,
    TorchDistributedConfig,
)
from hopsml.maggy.optimizer import GP, TPE, AbstractOptimizer, Asha, RandomSearch, searcher_of
from hopsml.search.space.space import trial_id
from tests.helpers.local_application import warm_application

pytestmark = pytest.mark.local

QUIET: dict[str, Any] = {"progress": False, "keep_warm": 60.0, "seed": 3, "max_executors": 2}


store = warm_application(
    lambda: experiment.lagom(lambda x: x, searchspace=space(), optimizer="randomsearch", num_trials=4, **QUIET)
)


def space() -> Searchspace:
    return Searchspace(x=("DOUBLE", [0.0, 1.0]))


def newest(store: Path) -> Path:
    return max((store / "Experiments").iterdir(), key=lambda path: int(path.name.rpartition("_")[2]))


def train(x: float, reporter: Any) -> dict[str, float]:
    for step in range(3):
        reporter.broadcast(x * step, step)
    reporter.log(f"x is {x}")
    return {"accuracy": x, "loss": 1 - x}


def test_lagom_returns_the_result_of_maggy_and_writes_its_files(store: Path) -> None:
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
    assert "6 of 6" in (root / "maggy.log").read_text()
    left = root / result["best_id"]
    assert json.loads((left / "trial.json").read_text())["metric_history"][0] == 0.0
    assert (left / "output.log").read_text() == f"x is {result['best_val']}\n"
    for name in (".hparams.json", ".outputs.json", ".metric"):
        assert (left / name).exists()


def test_lagom_accepts_a_config_and_the_whole_configuration_as_argument(store: Path) -> None:
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
        ("GridSearch", 1, 4),  # sets the number itself
        pytest.param(None, 2, 2, marks=pytest.mark.variant),
        pytest.param(TPE(num_warmup_trials=2), 4, 4, marks=pytest.mark.variant),
        pytest.param(
            GP(num_warmup_trials=2, pruner="hyperband", pruner_kwargs={"max_budget": 3, "n_iterations": 1}),
            1,
            3,
            marks=pytest.mark.variant,
        ),  # of which one is tried again
    ],
)
def test_lagom_runs_every_maggy_optimizer(store: Path, optimizer: Any, trials: int, expected: int) -> None:
    def function(n: int = 7, act: str = "a", budget: float = 1) -> float:
        return float(n) + budget / 10

    searched = (
        Searchspace() if optimizer is None else Searchspace(n=("DISCRETE", [1, 2]), act=("CATEGORICAL", ["a", "b"]))
    )
    result = experiment.lagom(function, searchspace=searched, optimizer=optimizer, num_trials=trials, **QUIET)
    assert result["num_trials"] == expected


def test_asha_assigns_small_budgets_first_and_counts_configurations(store: Path) -> None:
    result = experiment.lagom(
        lambda x, budget: x + budget / 1000, searchspace=space(), optimizer=Asha(), num_trials=4, **QUIET
    )
    rows = [json.loads(path.read_text()) for path in newest(store).glob("*/trial.json")]
    budgets = sorted(row["params"]["budget"] for row in rows)
    assert budgets[:4] == [1, 1, 1, 1] and budgets[-1] == 4 and len(result["metric_list"]) == len(rows) > 4
    assert result["num_trials"] == 4  # being promoted is no trial more
    assert json.loads((newest(store) / "result.json").read_text())["num_trials"] == 4


@pytest.mark.parametrize(
    "optimizer",
    [
        "asha",
        pytest.param("ASHA", marks=pytest.mark.variant),
        pytest.param(Asha(), marks=pytest.mark.variant),
        pytest.param(Asha, marks=pytest.mark.variant),
    ],
)
def test_asha_by_name_class_and_instance_tries_the_requested_configurations(store: Path, optimizer: Any) -> None:
    result = experiment.lagom(lambda x, budget: x, searchspace=space(), optimizer=optimizer, num_trials=5, **QUIET)
    assert result["num_trials"] == 5 and len(result["metric_list"]) > 5


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


def test_lagom_runs_a_custom_optimizer(store: Path) -> None:
    result = experiment.lagom(
        lambda x: x, searchspace=space(), optimizer=Falling(), num_trials=4, direction="min", **QUIET
    )
    assert result["metric_list"] == [1.0, 0.5, 0.25, 0.125] and result["best_val"] == 0.125


def test_ablation_reports_the_effect_of_each_left_out_component(store: Path) -> None:
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
    ("given", "kind", "message"),
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
def test_invalid_lagom_arguments_are_refused(given: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        experiment.lagom(
            lambda x, budget=0: x, **{"searchspace": space(), "optimizer": "randomsearch", "num_trials": 2, **given}
        )


def test_maggy_optimizer_can_be_driven_by_the_user() -> None:
    optimizer = RandomSearch()
    with pytest.raises(ArgumentError, match="num_trials and searchspace"):
        optimizer.initialize()
    optimizer.num_trials, optimizer.searchspace = 3, space()
    optimizer.initialize()
    found = [optimizer.get_suggestion() for _ in range(4)]
    assert all(isinstance(trial, Trial) and 0 <= trial.params["x"] <= 1 for trial in found[:3]) and found[3] is None
    asha = Asha()
    asha.num_trials, asha.searchspace, last = 4, space(), None
    asha.initialize()
    budgets = []
    while (trial := asha.get_suggestion(last)) is not None:
        assert isinstance(trial, Trial)
        budgets.append(trial.params["budget"])
        trial.final_metric, last = trial.params["x"], trial
    asha.finalize_experiment(asha.final_store)
    assert budgets.count(1) == 4 and max(budgets) == 4 and len(asha.final_store) == len(budgets)
    by_hyperband = RandomSearch(pruner="hyperband", pruner_kwargs={"max_budget": 3, "n_iterations": 1})
    assert searcher_of(by_hyperband, space(), 1, "max", 3).total == 4


def test_maggy_trial_round_trips_as_json() -> None:
    trial = Trial({"param1": 5, "param2": "ada"})
    assert trial.trial_id == "3d1cc9fdb1d4d001"  # as Maggy's
    assert [trial.append_metric({"step": step, "value": 0.5 * step}) for step in (0, 2, 2)] == [0, 2, None]
    trial.final_metric, trial.status = np.float32(0.5), Trial.FINALIZED
    again = Trial.from_json(trial.to_json())
    assert again == dataclasses.replace(trial, final_metric=0.5) and again.metric_dict == {0: 0.0, 2: 1.0}
    assert json.loads(trial.to_json())["trial_id"] == again.trial_id
    for wrong in ("{}", "[]", '{"__class__": "Other", "params": {}}'):
        with pytest.raises(ValueError, match="not a Trial"):
            Trial.from_json(wrong)
    ablated = Trial({"ablated_feature": "age", "ablated_layer": "None", "dataset_function": len}, "ablation")
    assert ablated.trial_id == trial_id({"ablated_feature": "age", "ablated_layer": "None"})
    with pytest.raises(ValueError, match="strings"):
        Trial._generate_id({1: 2})


def test_configs_can_be_imported_from_every_maggy_module() -> None:
    for folder in ("config", "experiment_config"):
        for module, name in (
            ("tf_distributed", "TfDistributedConfig"), ("torch_distributed", "TorchDistributedConfig"),
            ("ablation", "AblationConfig"), ("lagom", "LagomConfig"), ("base_config", "BaseConfig"),
            ("hyperparameter_optimization", "HyperparameterOptConfig"),
        ):  # fmt: skip
            found = getattr(importlib.import_module(f"hopsml.maggy.{folder}.{module}"), name)
            assert found is getattr(importlib.import_module(f"hopsml.maggy.{folder}"), name)
            assert issubclass(found, LagomConfig)
    assert importlib.import_module("hopsml.maggy.experiment_config.optimization").OptimizationConfig


def test_configs_accept_positional_arguments_in_maggys_order() -> None:
    def process(dataset: Any) -> Any:
        return dataset

    config = TfDistributedConfig(dict, ["a"], process, True, "name", 2, "text", {"lr": 1})
    assert (config.process_data, config.mixed_precision, config.name, config.hparams) == (
        process,
        True,
        "name",
        {"lr": 1},
    )
    torch = TorchDistributedConfig(dict, ["a"], {"lr": 1}, "deepspeed")
    assert (torch.hparams, torch.backend) == ({"lr": 1}, "deepspeed")
    search = HyperparameterOptConfig(3, None, space(), "key", "min", 2, 5, "none", "name", "text", 2, "model", "data")
    assert (search.es_interval, search.es_policy, search.hb_interval, search.dataset) == (2, "none", 2, "data")


def test_base_config_runs_the_function_once(store: Path) -> None:
    result = experiment.lagom(lambda: 0.5, BaseConfig(name="once"), **QUIET)
    assert result["metric_list"] == [0.5] and result["num_trials"] == 1


def test_options_without_effect_are_noted_in_the_log(store: Path) -> None:
    experiment.lagom(lambda x: x, HyperparameterOptConfig(2, "randomsearch", space(), hb_interval=5), **QUIET)
    assert "hb_interval=5 has no effect" in (newest(store) / "maggy.log").read_text()
    experiment.lagom(lambda x: x, searchspace=space(), optimizer="randomsearch", num_trials=2, hb_interval=7, **QUIET)
    assert "hb_interval=7 has no effect" in (newest(store) / "maggy.log").read_text()
    experiment.lagom(lambda x: x, searchspace=space(), optimizer="randomsearch", num_trials=2, **QUIET)
    assert "no effect" not in (newest(store) / "maggy.log").read_text()


def test_early_stopping_interval_counts_steps() -> None:
    config = HyperparameterOptConfig(3, None, space(), es_interval=4, es_min=2)
    assert experiment.stopper_arguments(config) == {"min_trials": 2, "interval": 4}  # of a MedianStop
    with pytest.raises(ArgumentError, match="interval=0"):
        experiment.lagom(lambda x: x, searchspace=space(), optimizer="randomsearch", es_interval=0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"process_data": lambda: 1}, "process_data has no data"),
        ({"process_data": "text", "dataset": []}, "must be a function"),
        ({"model": 3}, "pass the class"),
        ({"dataset": ["no/such/file"]}, "neither a path"),
    ],
)
def test_invalid_distributed_configs_are_refused(store: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        experiment.lagom(lambda: 1, TfDistributedConfig(**given))


def test_search_arguments_are_refused_for_distributed_training() -> None:
    with pytest.raises(ArgumentError, match="retries is for searches"):
        experiment.lagom(lambda: 1, TfDistributedConfig(), retries=3)


def test_unsupported_maggy_features_are_refused_with_a_remedy() -> None:
    with pytest.raises(ArgumentError, match="interim_results=True"):
        TPE(interim_results=True)

    with pytest.raises(ArgumentError, match="PyTorch"):
        experiment.lagom(lambda module: 1, TorchDistributedConfig())
    with pytest.raises(ArgumentTypeError, match="a config contains all options"):
        experiment.lagom(lambda x: x, HyperparameterOptConfig(1, None, space()), num_trials=3)
    study = AblationStudy("a", 1, "b")
    study.model.set_base_model_generator(lambda: 1)
    with pytest.raises(ArgumentError, match="no feature store"):
        experiment.lagom(lambda x: x, AblationConfig(study))
