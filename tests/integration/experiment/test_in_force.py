"""Tests that messages on the group state the effective settings of the workers, not the requested ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hopsml.experiment.result import effective_settings, merging_text, settings_warning
from tests.helpers.clock import END_S
from tests.helpers.cluster.backend_contract import read_json, submit
from tests.helpers.training.group import run_group

ALONE: dict[str, Any] = {"trained": "tensorflow"}
TOGETHER: dict[str, Any] = {"group": "tensorflow", "size": 2}
BY_TORCH: dict[str, Any] = {"group": "hopsml", "size": 2}
REDUCED = {**TOGETHER, "gradients": 160, "collectives": 5, "merge_scope": 32, "path": "scoped_allocator"}


@pytest.mark.fast
@pytest.mark.parametrize(
    ("seen", "words", "warns"),
    [
        ([{}], "none: one worker", False),
        ([ALONE], "none: one worker", False),
        ([{}, {}], "none: no framework formed a group", False),
        ([{"command": 1}], "none: one worker", False),
        ([{"command": 1}] * 2, "unknown: the workers ran a command, whose groups are not observed", False),
        ([ALONE, {}], "none: no framework formed a group", False),
        ([ALONE, ALONE], "none: no framework formed a group", True),
        ([{**ALONE, **TOGETHER}] * 2, "a group of 2 by tensorflow, in which no gradients were reduced", True),
        ([{**ALONE, **TOGETHER}, TOGETHER], "a group of 2 by tensorflow, in which no gradients were reduced", False),
        ([{**ALONE, **REDUCED}] * 2, "merge scope 32", False),
        ([TOGETHER, TOGETHER], "a group of 2 by tensorflow, in which no gradients were reduced", False),
        (
            [REDUCED] * 2,
            "merge scope 32: 160 gradients in 5 collectives, merged by TensorFlow's scoped allocator",
            False,
        ),
        ([{**REDUCED, "path": "packs"}] * 2, "5 collectives, merged by concatenation (packs)", False),
        (
            [{**REDUCED, "settings": "fp16, double buffering", "why": "the run names them"}] * 2,
            "scoped allocator (fp16, double buffering), because the run names them",
            False,
        ),
        (
            [{**REDUCED, "why": "the workers have GPUs"}] * 2,
            "merged by TensorFlow's scoped allocator, because the workers have GPUs",
            False,
        ),
        (
            [{**TOGETHER, "why": "the workers have GPUs"}] * 2,
            "a group of 2 by tensorflow, because the workers have GPUs, in which no gradients were reduced",
            False,
        ),
        ([{**BY_TORCH, "trained": "torch"}] * 2, "in which no gradients were reduced", True),
        ([{**BY_TORCH, "trained": "torch"}, BY_TORCH], "in which no gradients were reduced", False),
        ([{**BY_TORCH, "trained": "torch", "exchanged": 1}] * 2, "in which no gradients were reduced", False),
        ([{**BY_TORCH, "trained": "torch", "operations": 3}] * 2, "3 operations of torch", False),
        ([{"group": "hopsml", "size": 2, "operations": 7}] * 2, "a group of 2 by hopsml: 7 operations of torch", False),
        (
            [{**REDUCED, "collectives": 160, "merge_scope": 1}] * 2,
            "160 gradients in 160 collectives, none merged",
            False,
        ),
        (
            [{**REDUCED, "merge_scope": 0, "collectives": 1}] * 2,
            "merge scope all: 160 gradients in 1 collective",
            False,
        ),
    ],
)
def test_effective_settings_are_described_in_words(seen: list[dict[str, Any]], words: str, warns: bool) -> None:
    facts = effective_settings(seen)
    assert words in merging_text(facts)
    assert bool(settings_warning(facts)) == warns


@pytest.mark.fast
@pytest.mark.parametrize(("committed", "warns"), [(None, False), (True, False), (False, True)])
def test_elastic_run_without_commits_is_warned_about(committed: bool | None, warns: bool) -> None:
    warning = settings_warning(effective_settings([TOGETHER, TOGETHER], committed))
    assert ("hopsml.tensorflow.callbacks()" in warning) == warns
    both = settings_warning(effective_settings([ALONE, ALONE], committed))
    assert "trained separately" in both and ("nothing was committed" in both) == warns


@pytest.mark.fast
def test_workers_without_tensorflow_cause_no_warning(store: Path) -> None:
    run = submit(lambda: {"accuracy": 0.5})
    result = run.result(END_S)
    assert "WARNING" not in result.summary()
    assert not any("trained separately" in note for note in run.state.notes)
    assert read_json(run, "status.json")["in_force"] == {"workers": 2, "formed": False, "trained_alone": 0}


@pytest.mark.tensorflow
def test_workers_that_formed_no_group_are_reported_first(store: Path) -> None:
    def train() -> dict[str, float]:
        import keras
        import numpy as np

        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(np.ones((8, 4)), np.ones((8, 1)), verbose=0)
        return {"accuracy": 0.5}

    run = submit(train)
    result = run.result(END_S)
    assert result.metrics["accuracy"] == 0.5  # the run finished, and its result is valid
    first = result.summary().splitlines()[0]
    assert first.startswith("WARNING") and "2 workers trained separately: no TensorFlow group was formed" in first
    assert any("2 workers trained separately" in note for note in run.state.notes)
    assert read_json(run, "status.json")["in_force"] == {"workers": 2, "formed": False, "trained_alone": 2}
    assert "one collective" not in result.summary()


@pytest.mark.tensorflow
def test_model_outside_of_the_strategy_scope_is_noted(store: Path) -> None:
    def train() -> None:
        import keras
        import numpy as np

        import hopsml.tensorflow

        hopsml.tensorflow.strategy()
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(np.zeros((4, 1)), np.zeros(4), verbose=0)

    run = submit(train)
    run.result(END_S)
    assert any("build the model and its optimizer inside strategy.scope()" in note for note in run.state.notes)


@pytest.mark.variant
@pytest.mark.tensorflow
def test_prediction_without_training_causes_no_warning(store: Path) -> None:
    def predict() -> None:
        import keras
        import numpy as np

        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.predict(np.ones((8, 4)), verbose=0)

    result = submit(predict).result(END_S)
    assert result.in_force["trained_alone"] == 0 and "WARNING" not in result.summary()


@pytest.mark.tensorflow
@pytest.mark.variant  # of those that the others of this file see
def test_every_kind_of_optimizer_is_detected(tmp_path: Path) -> None:
    (result,) = run_group("starting:gradients_applied", tmp_path, workers=1)
    assert result["before"] == {}
    assert result["after"] == dict.fromkeys(["Keras 3", "tf_keras", "tf_keras, legacy", "TensorFlow 1"], ALONE)


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("settings", "found"),
    [
        pytest.param(
            {"merge_scope": 4, "scoped_allocator": allocator},
            {
                "by": "tensorflow", "merge_scope": 4, "path": path, "collectives": 2,
                "why": "the run was given merge_scope and scoped_allocator",
            }, id=path, marks=pytest.mark.variant,  # tests/integration/training/test_reduction.py looks at both
        )
        for allocator, path in ((True, "scoped_allocator"), (False, "packs"))
    ] + [
        pytest.param(
            settings,
            {"by": "hopsml", "merge_scope": "all", "path": "collective", "collectives": 1, **found}, id=found["why"],
            marks=[] if "settings" in found else [pytest.mark.variant],  # the choice: tests/unit/training/test_choice.py
        )
        for settings, found in (
            ({"implementation": "hopsml"}, {"why": "the run names them"}),
            ({}, {"why": "the workers have no GPUs"}),
            (
                {"compression": "fp16", "double_buffering": True},
                {"why": "the run was given compression and double_buffering", "settings": "fp16, double buffering"},
            ),
        )
    ],
)  # fmt: skip
def test_group_reports_how_its_gradients_were_merged(
    store: Path, settings: dict[str, Any], found: dict[str, Any]
) -> None:
    def train() -> None:
        import hopsml

        strategy = hopsml.tensorflow.strategy()
        import keras
        import numpy as np

        with strategy.scope():
            model = keras.Sequential([keras.Input((4,)), *[keras.layers.Dense(4) for _ in range(3)]])
            model.compile("sgd", "mse")
        model.fit(np.ones((8, 4)), np.ones((8, 4)), batch_size=8, verbose=0)

    run = submit(train, **settings)
    result = run.result(END_S)
    expected = {"workers": 2, "formed": True, "size": 2, "gradients": 6, **found}
    assert result.in_force == expected == read_json(run, "status.json")["in_force"]
    merged = f"merge scope {found['merge_scope']}: 6 gradients in {found['collectives']} collective"
    assert merged in result.summary() and f", because {found['why']}\n" in result.summary()
    assert found.get("settings", "") in result.summary()
    assert "WARNING" not in result.summary()
