"""Accuracy where gradients travel in half precision, or are applied a step late, beside the plain exchange.

Of half precision it says nothing yet: between workers of one host, as here, nothing is compressed.
"""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.figures import Figure
from benchmarks.options import Options
from benchmarks.studies import digits
from benchmarks.studies.study import Line, Study

EPOCHS, BATCH, RATE = 12, 64, 0.1
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "fp16": {"compression": "fp16"},
    "double buffering": {"double_buffering": True},
    "both": {"compression": "fp16", "double_buffering": True},
}


def run(options: Options) -> tuple[Study, list[Figure]]:
    """The study; for each way the points that it loses against the plain exchange."""
    from hopsml import experiment

    seeds = list(range(options.choose(5, 2)))
    values = {}
    for way, settings in WAYS.items():
        args = {"seeds": seeds, "settings": settings}
        values[way] = experiment.collective_all_reduce(
            train, args=args, num_workers=2, implementation="hopsml", progress=False, keep_warm=60.0
        ).value
        options.say(f"{way}: {values[way]}")
    study = Study(
        "exchange",
        f"Digits by two workers: accuracy after {EPOCHS} epochs, mean of {len(seeds)} seeds",
        "how gradients travel",
        "accuracy on 517 other digits (%)",
        (Line("accuracy", values),),
        (f"exchange: Keras fit, a global batch of {BATCH}, momentum SGD",),
        is_bar=True,
        reference=statistics.fmean(values["plain"]),
    )
    lost = {
        way: [before - now for before, now in zip(values["plain"], each, strict=True)] for way, each in values.items()
    }
    return study, [
        Figure(
            f"exchange.lost_points_{way.replace(' ', '_')}", round(statistics.fmean(each), 2), "points", len(each),
            round(min(each), 2), round(max(each), 2), "the plain exchange",
        )
        for way, each in lost.items()
        if way != "plain"
    ]  # fmt: skip


def train(seeds: list[int], settings: dict[str, Any]) -> list[float]:
    """The accuracy with each seed."""
    import keras
    import tensorflow as tf

    import hopsml

    strategy = hopsml.tensorflow.strategy(**settings)
    images, targets = (one[: digits.TRAINED] for one in digits.samples())
    found = []
    for seed in seeds:
        steps = EPOCHS * digits.TRAINED // BATCH
        with strategy.scope():
            net = digits.keras_net(seed)
            rate = keras.optimizers.schedules.PolynomialDecay(RATE, steps, 0.0, 2.0)
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            net.compile(keras.optimizers.SGD(rate, momentum=0.9), loss)
        data = tf.data.Dataset.from_tensor_slices((images[..., None], targets)).shuffle(digits.TRAINED, seed=seed)
        net.fit(data.batch(BATCH), epochs=EPOCHS, verbose=0)
        found.append(digits.keras_accuracy(net))
    return found
