"""Tests of removing layers from a Keras model, of Keras 3 and of tf_keras."""

from __future__ import annotations

from typing import Any

import pytest

from hopsml.errors import ArgumentError
from hopsml.maggy.ablation import without_layers

pytestmark = pytest.mark.tensorflow


def branching_model(keras: Any) -> Any:
    """Return a model with a branch: in -> one -> two -> (plus one) -> three -> out"""
    inputs = keras.Input((8,), name="in")
    one = keras.layers.Dense(6, name="one")(inputs)
    two = keras.layers.Dense(6, name="two")(one)
    both = keras.layers.Add(name="both")([one, two])
    three = keras.layers.Dense(3, name="three")(both)
    return keras.Model(inputs, keras.layers.Dense(2, name="out")(three))


@pytest.fixture(scope="module", params=["keras", "tf_keras"])
def keras(request: pytest.FixtureRequest) -> Any:
    return pytest.importorskip(request.param)


def test_without_layers_removes_layers_of_functional_models(keras: Any) -> None:
    model = without_layers(branching_model(keras), ["three"])
    assert [layer.name for layer in model.layers] == ["in", "one", "two", "both", "out"]
    assert model.get_layer("out").kernel.shape[0] == 6  # the layer receives the input of the removed one
    assert model(keras.ops.ones((4, 8)) if hasattr(keras, "ops") else __import__("numpy").ones((4, 8))).shape == (4, 2)
    both = without_layers(branching_model(keras), ["two", "three"])
    assert [layer.name for layer in both.layers] == ["in", "one", "both", "out"]


def test_without_layers_removes_layers_of_sequential_models(keras: Any) -> None:
    import numpy as np

    sizes = {"one": 6, "two": 5, "three": 2}
    layers = [keras.layers.Dense(size, name=name) for name, size in sizes.items()]
    model = without_layers(keras.Sequential([keras.Input((8,)), *layers]), ["two"])
    assert [layer.name for layer in model.layers] == ["one", "three"]
    assert model(np.ones((4, 8), "float32")).shape == (4, 2) and model.get_layer("three").kernel.shape[0] == 6


def test_layers_that_cannot_be_removed_are_refused(keras: Any) -> None:
    for names, message in (
        (["four"], "no layer four"),
        (["both"], "has 2 inputs"),
        (["out"], "output_layers"),
        ([], "left out"),
    ):
        with pytest.raises(ArgumentError, match=message):
            without_layers(branching_model(keras), names)
