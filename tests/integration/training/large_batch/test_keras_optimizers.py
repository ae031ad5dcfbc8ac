"""Tests of the Keras optimizers: updates equal the papers' formulas, plans train, saving works."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopsml
from hopsml.errors import ArgumentError, ArgumentTypeError
from tests.helpers.training import references

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("keras_imported")]
STEPS = 100
RATES = [0.1 * min(1.0, (step + 1) / 20) * (0.1 if step > 60 else 1.0) for step in range(STEPS)]
LIMIT = 1e-5


def trained(make: Any, fused: bool = True, compiled: bool = True, dtype: str = "float32") -> list[Any]:
    import tensorflow as tf

    optimizer = make()
    optimizer.fused = fused
    variables = [tf.Variable(value, dtype=dtype) for value in references.problem()]
    optimizer.build(variables)

    def apply(gradients: Any) -> None:
        optimizer.apply(gradients, variables)

    step_fn = tf.function(apply) if compiled else apply
    for step, rate in enumerate(RATES):
        optimizer.learning_rate = rate
        step_fn(
            [
                tf.constant(references.gradients(step, index, tuple(one.shape)), dtype)
                for index, one in enumerate(variables)
            ]
        )
    return [one.numpy() for one in variables]


def lars(**more: Any) -> Any:
    from hopsml.training.tensorflow.keras.large_batch import LARS

    return LARS(0.1, weight_decay=1e-2, trust=0.02, **more)


def lamb(**more: Any) -> Any:
    from hopsml.training.tensorflow.keras.large_batch import LAMB

    return LAMB(0.1, weight_decay=1e-2, **more)


def warmup() -> Any:
    from hopsml.training.tensorflow.keras.large_batch import RMSpropWarmup

    return RMSpropWarmup(0.1, steps_per_epoch=7)


@pytest.mark.parametrize(
    ("fused", "compiled"),
    [
        (True, True),
        *(pytest.param(*one, marks=pytest.mark.variant) for one in ((True, False), (False, True), (False, False))),
    ],
)
def test_keras_lars_and_lamb_equal_the_published_formulas_after_100_steps(fused: bool, compiled: bool) -> None:
    assert references.error(trained(lars, fused, compiled), references.lars(STEPS, RATES)) <= LIMIT
    assert references.error(trained(lamb, fused, compiled), references.lamb(STEPS, RATES)) <= LIMIT


def test_keras_rmsprop_warm_up_equals_the_published_transition() -> None:
    assert references.error(trained(warmup), references.rmsprop_warmup(STEPS, RATES, 7)) <= LIMIT


@pytest.mark.variant
@pytest.mark.parametrize("make", [lars, lamb, warmup])
def test_keras_optimizers_compute_norms_of_low_precision_variables_in_float32(make: Any) -> None:
    for dtype, limit in (("float16", 0.05), ("bfloat16", 0.4)):
        few = [value.astype(np.float32) for value in trained(make, dtype=dtype)]
        assert references.error(few, [np.float64(value) for value in trained(make)]) <= limit


def test_velocity_that_absorbs_the_rate_differs_without_momentum_correction() -> None:
    """The same where it does not change, and wrong without correction where it does."""
    plain = trained(lambda: lars(absorbs_rate=True))
    assert references.error(plain, references.lars(STEPS, RATES)) > 1e-3
    slow = trained(lambda: lars(absorbs_rate=True), fused=False)
    assert references.error(slow, [np.float64(value) for value in plain]) <= LIMIT


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("momentum", marks=pytest.mark.variant),
        "lars",
        pytest.param("lamb", marks=pytest.mark.variant),
        *(pytest.param(kind, marks=pytest.mark.variant) for kind in ("adam", "rmsprop_warmup")),
    ],
)
def test_plan_trains_a_keras_model_and_its_optimizer_can_be_saved(kind: str, tmp_path: Path) -> None:
    import keras

    random = np.random.default_rng(1)
    x = np.float32(random.normal(size=(512, 8)))
    y = np.float32(x @ random.normal(size=(8, 1)))
    recipe = hopsml.large_batch.Recipe(
        reference_batch_size=16,
        learning_rate=0.01,
        epochs=12,
        optimizer=kind,
        warmup_epochs=2,
        trust=0.1,
        schedule=hopsml.large_batch.Cosine(0.1),
    )
    plan = recipe.at(64, n_samples=len(x))
    model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(1)])
    model.compile(plan.keras(), "mse")
    losses = model.fit(x, y, batch_size=64, epochs=12, verbose=0).history["loss"]
    assert losses[-1] < losses[0] * 0.8
    assert int(model.optimizer.iterations) == plan.steps
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert again.optimizer.get_config() == model.optimizer.get_config()
    for one, other in zip(model.optimizer.variables, again.optimizer.variables, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


@pytest.mark.parametrize("kind", ["momentum", "lars", "lamb", "adam", "rmsprop_warmup"])
def test_keras_weights_do_not_change_after_the_end_of_a_plan(kind: str) -> None:
    import tensorflow as tf

    recipe = hopsml.large_batch.Recipe(
        reference_batch_size=16, learning_rate=0.01, epochs=3, optimizer=kind, schedule=hopsml.large_batch.Polynomial()
    )
    plan = recipe.at(16, n_samples=32)
    variable, optimizer = tf.Variable(np.ones((4, 3), np.float32)), plan.keras()
    for _ in range(plan.steps):
        optimizer.apply([tf.fill((4, 3), 0.5)], [variable])
    end = variable.numpy()
    for _ in range(4):
        optimizer.apply([tf.fill((4, 3), 0.5)], [variable])
    assert np.isfinite(end).all() and not np.array_equal(end, np.ones((4, 3)))
    np.testing.assert_array_equal(variable.numpy(), end)


@pytest.mark.parametrize("given", [{}, {"transition_center": 3, "transition_period": 2.5}], ids=["scaled", "given"])
def test_keras_rmsprop_warm_up_of_a_plan_has_its_transition_and_continues_after_the_end(given: dict[str, Any]) -> None:
    import keras
    import tensorflow as tf

    recipe = hopsml.large_batch.Recipe(
        reference_batch_size=16, learning_rate=0.1, epochs=10, weight_decay=0.0, optimizer="rmsprop_warmup",
        schedule=hopsml.large_batch.SlowStart(), **given,
    )  # fmt: skip
    plan = recipe.at(16, n_samples=7 * 16)
    optimizer = keras.optimizers.deserialize(keras.optimizers.serialize(plan.keras()))
    variables = [tf.Variable(value, dtype="float32") for value in references.problem()]
    for step in range(STEPS):
        pairs = [
            tf.constant(references.gradients(step, index, tuple(v.shape)), "float32")
            for index, v in enumerate(variables)
        ]
        optimizer.apply(pairs, variables)
    rates = [plan.learning_rate(step) for step in range(STEPS)]
    assert plan.steps == 70 and rates[-1] == rates[69] > 0
    expected = references.rmsprop_warmup(STEPS, rates, 7, *((3, 2.5) if given else (10 / 9, 5 / 9)))
    assert references.error([one.numpy() for one in variables], expected) <= LIMIT


def test_keras_optimizer_follows_the_rate_of_the_plan() -> None:
    for schedule in (hopsml.large_batch.Steps((3, 5)), hopsml.large_batch.Polynomial(), hopsml.large_batch.SlowStart()):
        recipe = hopsml.large_batch.Recipe(
            reference_batch_size=16, learning_rate=0.1, epochs=8, warmup_epochs=2, schedule=schedule
        )
        plan = recipe.at(64, n_samples=1000)
        optimizer = plan.keras()
        found = [float(optimizer._learning_rate(step)) for step in range(plan.steps)]
        assert found == pytest.approx([plan.learning_rate(step) for step in range(plan.steps)], rel=1e-5)


def test_sparse_gradients_are_converted_to_dense_ones() -> None:
    import tensorflow as tf

    dense, sparse = (tf.Variable(np.ones((4, 3), np.float32)) for _ in range(2))
    gradient = tf.IndexedSlices(tf.ones((2, 3)), tf.constant([1, 1]), tf.constant([4, 3]))
    for variable, given in ((dense, tf.convert_to_tensor(gradient)), (sparse, gradient)):
        optimizer = lars()
        optimizer.apply([given], [variable])
    np.testing.assert_allclose(dense.numpy(), sparse.numpy())


def test_zero_last_gamma_sets_the_last_gamma_of_each_residual_branch() -> None:
    import keras

    found = hopsml.large_batch.zero_last_gamma(
        keras.applications.ResNet50(weights=None, input_shape=(32, 32, 3), include_top=False)
    )
    assert len(found) == 16 and all(name.endswith("_3_bn") for name in found)
    plain = keras.Sequential([keras.layers.Input((2,)), keras.layers.BatchNormalization()])
    with pytest.raises(ArgumentError, match="no Add layer"):
        hopsml.large_batch.zero_last_gamma(plain)
    with pytest.raises(ArgumentTypeError, match="neither a model of Keras 3 nor a torch module"):
        hopsml.large_batch.zero_last_gamma("resnet")
    assert hopsml.large_batch.synchronize(plain) == hopsml.large_batch.reduce_statistics(plain) == 1
    assert plain.layers[0].synchronized
