"""Synchronous SGD against local SGD, block momentum, elastic averaging and asynchronous SGD, at equal samples."""

from __future__ import annotations

import functools
import statistics
from typing import Any

from benchmarks.figures import Figure
from benchmarks.options import Options
from benchmarks.studies import digits
from benchmarks.studies.study import Line, Study

WORKERS, BATCH, RATE, EPOCHS = 4, 16, 0.05, 12  # BATCH is the batch of each worker
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

    seeds = list(range(options.choose(5, 2)))
    values = {}
    for way, settings in WAYS.items():
        given: dict[str, Any] = {"progress": False, "keep_warm": 60.0}
        # a run for each seed: a second loop of one run would continue from the first one's checkpoint
        if way == "async_sgd":
            values[way] = [
                experiment.parameter_server(
                    train,
                    args={"algorithm": way, "settings": settings, "seeds": [seed]},
                    num_workers=WORKERS,
                    num_ps=1,
                    **given,
                ).value[0]
                for seed in seeds
            ]
        else:
            args = {"algorithm": way, "settings": settings, "seeds": seeds}
            values[way] = experiment.collective_all_reduce(train, args=args, num_workers=WORKERS, **given).value
        options.say(f"{way}: {values[way]}")
    study = Study(
        "algorithms",
        f"Digits by {WORKERS} workers: accuracy after {EPOCHS} epochs, mean of {len(seeds)} seeds",
        "algorithm",
        "accuracy on 517 other digits (%)",
        (Line("accuracy", values),),
        (
            f"algorithms: equal samples, {BATCH} a worker and step, momentum SGD; the rate is {RATE}, and {WORKERS} times "
            "that for sync_sgd, whose batch is the group's; every 8 steps for those that average weights",
        ),
        is_bar=True,
        reference=statistics.fmean(values["sync_sgd"]),
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


def train(algorithm: str, settings: dict[str, Any], seeds: list[int]) -> list[float]:
    """Return the accuracy with each seed."""
    import hopsml

    steps = EPOCHS * digits.TRAINED // (WORKERS * BATCH)
    found = []
    for seed in seeds:
        build, data = functools.partial(compiled, algorithm, seed, steps), functools.partial(batches, seed)
        loop = hopsml.tensorflow.TrainingLoop(build, data, algorithm, **settings)  # type: ignore[arg-type]
        loop.run(steps)
        judged = digits.keras_net(seed)
        judged.set_weights(loop.model.get_weights())
        found.append(digits.keras_accuracy(judged))
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
