"""Tests of recomputed statistics of batch normalisation in Keras, in one process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hopsml

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("keras_imported")]
ROWS = np.random.default_rng(5).normal(3.0, 2.0, (23, 4)).astype("float32")
BATCHES = [ROWS[:8], ROWS[8:16], ROWS[16:]]  # the last one is smaller

recompute = hopsml.large_batch.recompute_statistics


def keras_model(**settings: Any) -> Any:
    """Return a model with a normalisation, dropout, and a nested model that ends with another normalisation."""
    import keras
    from keras import layers

    keras.utils.set_random_seed(2)
    inner = keras.Sequential([keras.Input((6,)), layers.Dense(5, "tanh"), layers.BatchNormalization(name="second")])
    return keras.Sequential(
        [
            keras.Input((4,)),
            layers.BatchNormalization(name="first", **settings),
            layers.Dense(6, "relu"),
            *(layers.Dropout(0.5), inner, layers.Dense(1)),
        ]
    )


def keras_normalisations(model: Any) -> list[Any]:
    import keras

    return [one for one in model._flatten_layers() if isinstance(one, keras.layers.BatchNormalization)]


def keras_inputs(model: Any, batches: list[Any]) -> list[Any]:
    """Return the inputs of both normalisations for all batches, computed by numpy from the weights."""
    one, dense, _, inner, _ = model.layers
    hidden, _ = inner.layers
    (gamma, beta), (kernel, bias) = ([x.numpy() for x in layer.trainable_variables] for layer in (one, dense))
    inputs = []
    for batch in batches:
        normal = (batch - batch.mean(0)) / np.sqrt(batch.var(0) + one.epsilon) * gamma + beta
        active = np.maximum(normal @ kernel + bias, 0)
        inputs.append(np.tanh(active @ hidden.kernel.numpy() + hidden.bias.numpy()))
    return [np.concatenate(batches), np.concatenate(inputs)]


def test_keras_statistics_are_the_moments_of_all_rows_of_all_batches() -> None:
    model = keras_model()
    model.compile("adam", "mse")
    model.fit(ROWS, ROWS[:, :1], verbose=0)
    weights, variables = (
        [x.numpy() for x in those] for those in (model.trainable_variables, model.optimizer.variables)
    )
    seeds = [x.numpy() for x in model.non_trainable_variables if "seed" in x.path]
    assert len(seeds) == 1, "dropout has one"
    assert recompute(model, BATCHES) == 2
    for layer, x in zip(keras_normalisations(model), keras_inputs(model, BATCHES), strict=True):
        np.testing.assert_allclose(layer.moving_mean.numpy(), x.mean(0), rtol=1e-6, atol=1e-6, err_msg=layer.name)
        np.testing.assert_allclose(layer.moving_variance.numpy(), x.var(0), rtol=1e-5, err_msg=layer.name)
        assert layer.momentum == 0.99
    for old, new in zip(weights, model.trainable_variables, strict=True):
        np.testing.assert_array_equal(old, new.numpy())
    for old, new in zip(variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(old, new.numpy())
    np.testing.assert_array_equal(seeds[0], next(x.numpy() for x in model.non_trainable_variables if "seed" in x.path))
    model.fit(ROWS, ROWS[:, :1], verbose=0)  # moving averages continue from here


def test_keras_statistics_of_one_batch_are_those_of_a_step_without_momentum() -> None:
    plain, other = keras_model(), keras_model(momentum=0.0)
    other(ROWS, training=True)
    recompute(plain, [(ROWS, ROWS[:, :1])])
    one, two = (keras_normalisations(model)[0] for model in (plain, other))
    np.testing.assert_allclose(one.moving_mean.numpy(), two.moving_mean.numpy(), rtol=1e-6)
    np.testing.assert_allclose(one.moving_variance.numpy(), two.moving_variance.numpy(), rtol=1e-6)


def test_keras_statistics_with_channels_first_masks_and_half_precision() -> None:
    import keras
    from keras import layers

    images = np.random.default_rng(1).normal(2.0, 3.0, (6, 3, 5, 5)).astype("float32")
    first = keras.Sequential([keras.Input((3, 5, 5)), layers.BatchNormalization(axis=1)])
    assert recompute(first, [images[:4], images[4:]]) == 1
    np.testing.assert_allclose(first.layers[0].moving_mean.numpy(), images.mean((0, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(first.layers[0].moving_variance.numpy(), images.var((0, 2, 3)), rtol=1e-6)
    series = np.random.default_rng(2).normal(1.0, 1.0, (4, 3, 2)).astype("float32")
    series[:2, 1:] = 0.0  # padding
    masked = keras.Sequential([keras.Input((3, 2)), layers.Masking(0.0), layers.BatchNormalization()])
    recompute(masked, [series[:1], series[1:]])
    used = series[(series != 0).any(-1)]
    np.testing.assert_allclose(masked.layers[1].moving_mean.numpy(), used.mean(0), rtol=1e-6)
    np.testing.assert_allclose(masked.layers[1].moving_variance.numpy(), used.var(0), rtol=1e-6)
    half = keras.Sequential([keras.Input((4,)), layers.BatchNormalization(dtype="mixed_float16")])
    recompute(half, BATCHES)
    rounded = ROWS.astype("float16").astype("float64")
    np.testing.assert_allclose(half.layers[0].moving_mean.numpy(), rounded.mean(0), rtol=1e-6)
    np.testing.assert_allclose(half.layers[0].moving_variance.numpy(), rounded.var(0), rtol=1e-6)


def test_keras_statistics_do_not_change_in_frozen_layers_or_by_an_error() -> None:
    model = keras_model()
    first, second = keras_normalisations(model)
    first.trainable = False
    before = first.moving_mean.numpy()
    assert recompute(model, BATCHES) == 1
    np.testing.assert_array_equal(first.moving_mean.numpy(), before)
    after = second.moving_mean.numpy()

    def broken() -> Iterator[Any]:
        yield ROWS
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        recompute(model, broken())
    np.testing.assert_array_equal(second.moving_mean.numpy(), after)
    assert "call" not in vars(second)


def test_keras_callback_recomputes_before_each_validation_and_at_the_end() -> None:
    model, passes = keras_model(), []
    model.compile("sgd", "mse")

    def batches() -> list[Any]:
        passes.append(1)
        return BATCHES

    callback = hopsml.large_batch.recomputed_statistics(batches)
    model.fit(ROWS, ROWS[:, :1], epochs=2, verbose=0, callbacks=[callback], validation_data=(ROWS, ROWS[:, :1]))
    assert len(passes) == 2, "the validation of the last epoch has the final statistics"
    for layer, x in zip(keras_normalisations(model), keras_inputs(model, BATCHES), strict=True):
        np.testing.assert_allclose(layer.moving_mean.numpy(), x.mean(0), rtol=1e-5, atol=1e-6)
    model.fit(ROWS, ROWS[:, :1], epochs=2, verbose=0, callbacks=[callback])
    assert len(passes) == 3
