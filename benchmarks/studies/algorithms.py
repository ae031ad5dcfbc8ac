"""Synchronous SGD against local SGD, block momentum, elastic averaging and asynchronous SGD.

They are compared at equal samples, and over the seconds of training.
"""

from __future__ import annotations

import functools
import statistics
import time
from typing import Any

from benchmarks.figures import Figure
from benchmarks.options import Options
from benchmarks.studies import digits
from benchmarks.studies.study import Curve, Line, Study

WORKERS, BATCH, RATE, EPOCHS = 4, 16, 0.05, 12  # BATCH is the batch of each worker
STEPS = digits.TRAINED // (WORKERS * BATCH)  # of each worker in an epoch
WAYS: dict[str, dict[str, Any]] = {
    "sync_sgd": {},
    "local_sgd": {"every": 8},
    "block_momentum": {"every": 8},
    "elastic_averaging": {"every": 8},
    "async_sgd": {},
}


def run(options: Options) -> tuple[Study, list[Figure]]:
    """Run the study and return the points that each algorithm loses against synchronous SGD."""
    from hopsml import experiment

    seeds, epochs = list(range(options.choose(5, 2))), options.choose(EPOCHS, 2)
    trained: dict[str, list[Any]] = {}
    for way, settings in WAYS.items():
        args = {"algorithm": way, "settings": settings, "epochs": epochs}
        given: dict[str, Any] = {"progress": False, "keep_warm": 60.0}
        # a run for each seed: a second loop of one run would continue from the first one's checkpoint
        if way == "async_sgd":
            trained[way] = [
                experiment.parameter_server(
                    train, args={**args, "seeds": [seed]}, num_workers=WORKERS, num_ps=1, **given
                ).value[0]
                for seed in seeds
            ]
        else:
            args["seeds"] = seeds
            trained[way] = experiment.collective_all_reduce(train, args=args, num_workers=WORKERS, **given).value
        options.say(f"{way}: {trained[way]}")
    curves = tuple(curve(way, of_seeds) for way, of_seeds in trained.items())
    values = {each.label: each.values[-1] for each in curves}
    study = Study(
        "algorithms",
        f"Digits by {WORKERS} workers: accuracy during {epochs} epochs, mean of {len(seeds)} seeds",
        "algorithm",
        "accuracy on 517 other digits (%)",
        (Line("accuracy", values),),
        (
            f"algorithms: equal samples, {BATCH} a worker and step, momentum SGD; the rate is {RATE}, and {WORKERS} times "
            "that for sync_sgd, whose batch is the group's; every 8 steps for those that average weights; seconds of "
            "training without the first step and without evaluations",
        ),
        is_bar=True,
        reference=statistics.fmean(values["sync_sgd"]),
        facts={"seconds": {each.label: each.seconds[-1] for each in curves}},
        curves=curves,
    )
    lost = {
        way: [before - now for before, now in zip(values["sync_sgd"], each, strict=True)]
        for way, each in values.items()
    }
    return study, [
        Figure(
            f"algorithms.lost_points_{way}", round(statistics.fmean(each), 2), "points", len(each),
            round(min(each), 2), round(max(each), 2), "sync_sgd",
        )
        for way, each in lost.items()
        if way != "sync_sgd"
    ]  # fmt: skip


def curve(label: str, of_seeds: list[list[tuple[float, float]]]) -> Curve:
    """Return the curve of pairs of seconds and accuracy after each epoch, given for each seed."""
    epochs = range(len(of_seeds[0]))
    return Curve(
        label,
        [epoch + 1.0 for epoch in epochs],
        [[pairs[epoch][0] for pairs in of_seeds] for epoch in epochs],
        [[pairs[epoch][1] for pairs in of_seeds] for epoch in epochs],
    )


def train(algorithm: str, settings: dict[str, Any], epochs: int, seeds: list[int]) -> list[list[tuple[float, float]]]:
    """Return the seconds of training and the accuracy after each epoch, for each seed."""
    import hopsml

    found = []
    for seed in seeds:
        build, data = functools.partial(compiled, algorithm, seed, epochs * STEPS), functools.partial(batches, seed)
        loop = hopsml.tensorflow.TrainingLoop(build, data, algorithm, **settings)  # type: ignore[arg-type]
        loop.run(1)  # which compiles the step
        found.append(list[tuple[float, float]]())
        seconds = 0.0
        for epoch in range(epochs):
            began = time.perf_counter()
            loop.run(STEPS - (epoch == 0))
            seconds += time.perf_counter() - began
            judged = digits.keras_net(seed)
            judged.set_weights(loop.model.get_weights())
            found[-1].append((seconds, digits.keras_accuracy(judged)))
    return found


def compiled(algorithm: str, seed: int, steps: int) -> Any:
    """Return the net with an optimizer whose rate falls to 0 at the last of its steps."""
    import keras

    net = digits.keras_net(seed)
    rate = WORKERS * RATE if algorithm == "sync_sgd" else RATE
    updates = WORKERS * steps if algorithm == "async_sgd" else steps
    falling = keras.optimizers.schedules.PolynomialDecay(rate, updates, 0.0, 2.0)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    net.compile(keras.optimizers.SGD(falling, momentum=0.9), loss)
    return net


def batches(seed: int) -> Any:
    """Return this worker's order of all samples, of which it uses a fourth per epoch."""
    import os

    import tensorflow as tf

    images, targets = (one[: digits.TRAINED] for one in digits.samples())
    data = tf.data.Dataset.from_tensor_slices((images[..., None], targets))
    return data.shuffle(digits.TRAINED, seed=seed * 100_003 + os.getpid()).batch(BATCH, drop_remainder=True)
