"""Tests of TensorFlow objects in functions: tensors are refused by name, Keras registrations are sent along."""

from __future__ import annotations

import importlib
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

from hopsml import experiment
from hopsml.cluster.driver.capture import capture
from tests.helpers.training.group import run_group

pytestmark = pytest.mark.tensorflow


@pytest.mark.variant
def test_captured_tensor_is_refused_with_its_name(tmp_path: Path) -> None:
    (found,) = run_group("alone:captured_tensor", tmp_path, workers=1)
    assert "weights" in found["refused"] and "Tensor" in found["refused"], found


@pytest.fixture(scope="module", params=["keras", "tf_keras"])
def library(request: pytest.FixtureRequest) -> Any:
    return importlib.import_module(request.param)


@pytest.fixture(scope="module")
def keras() -> Any:
    return importlib.import_module("keras")


def test_keras_registrations_are_restored_when_the_function_is_unpickled(
    library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    saving = library.saving

    @saving.register_keras_serializable(package="mine")  # type: ignore[untyped-decorator]
    class Doubling:
        def get_config(self) -> dict[str, Any]:
            return {}

    @saving.register_keras_serializable(package="mine", name="double")  # type: ignore[untyped-decorator]
    def twice(x: int) -> int:
        return 2 * x

    captured = capture(lambda: (Doubling, twice, lambda x: x))
    assert library.__name__ in captured.preload
    objects = saving.get_custom_objects()
    assert objects.pop("mine>Doubling") is Doubling and objects.pop("mine>double") is twice
    with monkeypatch.context() as without_it:
        without_it.setitem(sys.modules, library.__name__, None)
        assert pickle.loads(captured.payload)[0]()[1](3) == 6
    assert not [name for name in objects if name.startswith("mine>")]
    for _ in range(2):
        kind, function, plain = pickle.loads(captured.payload)[0]()
        assert objects.pop("mine>Doubling") is kind and objects.pop("mine>double") is function
        assert [saving.get_registered_name(one) for one in (kind, function)] == ["mine>Doubling", "mine>double"]
        assert saving.get_registered_name(plain) == "<lambda>"


@pytest.mark.variant
def test_worker_loads_a_model_with_a_registered_layer_that_it_saved(store: Path, keras: Any) -> None:
    @keras.saving.register_keras_serializable(package="mine")  # type: ignore[untyped-decorator]
    class Scale(keras.layers.Layer):  # type: ignore[misc, name-defined]
        def call(self, x: Any) -> Any:
            return x * 2

    def train() -> dict[str, str]:
        keras.Sequential([keras.layers.Input((4,)), Scale()]).save("model.keras")
        loaded = keras.models.load_model("model.keras")
        return {"layer": type(loaded.layers[0]).__name__, "name": keras.saving.get_registered_name(Scale)}

    for _ in range(2):  # the second one in a fork of what the first one left warm
        result = experiment.collective_all_reduce(train, num_workers=1, progress=False)
        assert result.value == {"layer": "Scale", "name": "mine>Scale"}
