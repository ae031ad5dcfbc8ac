"""Tests that large-batch optimizers train the same on two workers as on one with the whole batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopsml
from hopsml import experiment
from tests.helpers.local_application import warm_application

pytestmark = [pytest.mark.tensorflow]
QUIET: dict[str, Any] = {"progress": False, "keep_warm": 120.0}


def train(optimizers: list[str], implementation: str) -> dict[str, Any]:
    """The weights that each optimizer ends with, and whether all workers have the same."""
    import keras

    import hopsml

    strategy = hopsml.tensorflow.strategy(implementation=implementation)  # type: ignore[arg-type]
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(32, 6)).astype("float32"), rng.normal(size=(32, 3)).astype("float32")
    found: dict[str, Any] = {}
    for name in optimizers:
        plan = hopsml.large_batch.Recipe(
            reference_batch_size=4, learning_rate=0.01, epochs=6, optimizer=name, trust=0.02, warmup_epochs=1.0
        ).at(16, n_samples=len(x))
        with strategy.scope():
            keras.utils.set_random_seed(7)
            model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(3)])
            model.compile(plan.keras(), "mse")
        model.fit(x, y, batch_size=16, epochs=6, shuffle=False, verbose=0)
        weights = [one.tolist() for one in model.get_weights()]
        found[name] = {"weights": weights, "alike": all(one == weights for one in hopsml.distributed.exchange(weights))}
    return found


SIZES = hopsml.large_batch.BatchSizeSchedule.doubling(workers=1, every=1, most=2)


def grow(file: str) -> None:
    """Train by a schedule of sizes; the first worker appends workers and rate of each step to ``file``."""
    import json
    import time

    import keras

    class Watched(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.wanted = SIZES.workers(epoch)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            size = hopsml.distributed.world_size()
            if hopsml.distributed.rank() == 0:  # its process may be another one after a change
                with open(file, "a") as steps:
                    steps.write(json.dumps([size, float(self.model.optimizer.learning_rate.numpy())]) + "\n")
            if size < self.wanted:
                time.sleep(2.0)  # so that the other worker, however slowly it starts, joins before the end

    with hopsml.tensorflow.strategy().scope():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
        model.compile(keras.optimizers.SGD(0.01), "mse")
    following = hopsml.tensorflow.callbacks(1, scaling="linear", batch_size_schedule=SIZES)
    x, y = np.ones((64, 6), np.float32), np.ones((64, 3), np.float32)
    model.fit(x, y, batch_size=4, epochs=5, verbose=0, callbacks=[*following, Watched()])


def test_schedule_doubles_an_elastic_fit_from_one_worker(tmp_path: Path) -> None:
    file, first = tmp_path / "steps", SIZES.workers(0)
    experiment.collective_all_reduce(
        grow, args={"file": str(file)}, min_workers=1, max_workers=2, first_workers=first, **QUIET
    )
    workers, rates = zip(*map(json.loads, file.read_text().splitlines()), strict=True)
    assert workers[:16] == (1,) * 16 and workers == tuple(sorted(workers)) and workers[-1] == 2
    assert rates[0] == pytest.approx(0.01) and list(rates) == sorted(rates) and rates[-1] > 0.01


OPTIMIZERS = ["lars", "lamb", "rmsprop_warmup"]


application = warm_application(
    lambda: experiment.collective_all_reduce(
        train, args={"optimizers": [], "implementation": "hopsml"}, num_workers=2, **QUIET
    ),
    autouse=True,
)


@pytest.mark.parametrize(
    ("implementation", "optimizers"),
    [
        ("hopsml", OPTIMIZERS[:1]),
        pytest.param("hopsml", OPTIMIZERS[1:], marks=pytest.mark.variant),
        pytest.param("tensorflow", OPTIMIZERS, marks=pytest.mark.variant),
    ],
)
def test_large_batch_optimizer_on_two_workers_equals_one_worker(implementation: str, optimizers: list[str]) -> None:
    given = {"optimizers": optimizers, "implementation": implementation}
    alone = experiment.collective_all_reduce(train, args=given, num_workers=1, **QUIET).value
    together = experiment.collective_all_reduce(train, args=given, num_workers=2, **QUIET).value
    for name in optimizers:
        assert together[name]["alike"], name
        for one, two in zip(alone[name]["weights"], together[name]["weights"], strict=True):
            np.testing.assert_allclose(two, one, rtol=2e-4, atol=2e-6, err_msg=name)


def moving_statistics() -> dict[str, Any]:
    """Train each worker alone on different rows; return its counted statistics and those after the training."""
    import keras

    import hopsml

    rank = hopsml.distributed.rank()
    keras.utils.set_random_seed(3)
    layer = keras.layers.BatchNormalization(momentum=0.5)
    model = keras.Sequential([keras.Input((4,)), layer, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    own: list[Any] = []

    def note(logs: Any = None) -> None:
        own.append([layer.moving_mean.numpy().tolist(), layer.moving_variance.numpy().tolist()])

    noting = keras.callbacks.LambdaCallback(on_train_end=note)
    x = np.random.default_rng(rank).normal(rank, 1.0 + rank, (64, 4)).astype("float32")
    given = [noting, hopsml.large_batch.reduced_statistics()]
    model.fit(x, x[:, :1], batch_size=16, epochs=2, shuffle=False, verbose=0, callbacks=given)
    note()
    return {"own": hopsml.distributed.exchange(own[0]), "after": hopsml.distributed.exchange(own[1])}


def test_fit_ends_with_the_averaged_statistics_of_all_workers() -> None:
    found = experiment.collective_all_reduce(moving_statistics, num_workers=2, **QUIET).value
    means, variances = (np.array([own[which] for own in found["own"]]) for which in (0, 1))
    assert np.abs(means[0] - means[1]).min() > 0.3, "each has its own before"
    mean = means.mean(axis=0)
    expected = [mean, (variances + means**2).mean(axis=0) - mean**2]
    for after in found["after"]:
        np.testing.assert_allclose(after, expected, rtol=1e-5)


def recomputed_statistics(implementation: str) -> dict[str, Any]:
    """Train, then recompute statistics over seven batches that the workers divide; return them with the weights."""
    import keras
    from keras import layers

    import hopsml

    rank, workers = hopsml.distributed.rank(), hopsml.distributed.world_size()
    x = np.random.default_rng(4).normal(2.0, 3.0, (26, 4)).astype("float32")
    batches = [x[first : first + 4] for first in range(0, 26, 4)]  # the last one has 2 rows
    with hopsml.tensorflow.strategy(implementation=implementation).scope():  # type: ignore[arg-type]
        keras.utils.set_random_seed(3)
        inner = keras.Sequential([keras.Input((6,)), layers.BatchNormalization(), layers.Dense(3, "tanh")])
        model = keras.Sequential(
            [
                keras.Input((4,)),
                layers.Dense(6),
                layers.Dropout(0.5),
                inner,
                layers.BatchNormalization(),
                layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.SGD(0.0), "mse")
    hopsml.large_batch.synchronize(model)
    own = hopsml.large_batch.recomputed_statistics(lambda: batches[rank::workers])
    model.fit(x[:24], x[:24, :1], batch_size=12, verbose=0, callbacks=[own], validation_data=(x, x[:, :1]))
    found = [
        [one.moving_mean.numpy().tolist(), one.moving_variance.numpy().tolist()]
        for one in model._flatten_layers()
        if isinstance(one, layers.BatchNormalization)
    ]
    assert len(found) == 2 and all(one.synchronized for one in (inner.layers[0], model.layers[3]))
    return {"found": found, "alike": all(one == found for one in hopsml.distributed.exchange(found))}


@pytest.mark.parametrize(
    ("implementation", "workers"),
    [
        ("hopsml", 2),
        pytest.param("hopsml", 3, marks=pytest.mark.variant),
        pytest.param("tensorflow", 2, marks=pytest.mark.variant),
    ],
)
def test_recomputed_statistics_do_not_depend_on_the_number_of_workers(implementation: str, workers: int) -> None:
    args = {"implementation": implementation}
    alone = experiment.collective_all_reduce(recomputed_statistics, args=args, num_workers=1, **QUIET).value
    together = experiment.collective_all_reduce(recomputed_statistics, args=args, num_workers=workers, **QUIET).value
    assert together["alike"]
    for one, several in zip(alone["found"], together["found"], strict=True):
        np.testing.assert_allclose(several, one, rtol=1e-6, atol=1e-6)
