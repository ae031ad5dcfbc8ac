"""Accuracy with gradients in half precision, or applied a step late, against the plain exchange.

Between workers of one host gradients go through memory without compression. Here the workers form a separate group, as
if each were on a different host, so that all gradients go over sockets.
"""

from __future__ import annotations

import socket
import statistics
from typing import Any

from benchmarks.figures import Figure
from benchmarks.options import Options
from benchmarks.studies import digits
from benchmarks.studies.study import Line, Study

EPOCHS, BATCH, RATES = 12, 64, (0.1, 0.02)
SECRET = b"not a secret: a study on loopback"
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "fp16": {"compression": "fp16"},
    "double buffering": {"double_buffering": True},
    "both": {"compression": "fp16", "double_buffering": True},
}


def run(options: Options) -> tuple[Study, list[Figure]]:
    """Run the study and return the points that each method loses against the plain exchange."""
    from hopsml import experiment

    seeds = list(range(options.choose(5, 2)))
    found: dict[float, dict[str, list[float]]] = {rate: {} for rate in RATES}
    for rate, values in found.items():
        for way, settings in WAYS.items():
            args = {"seeds": seeds, "rate": rate, "settings": settings}
            values[way] = experiment.collective_all_reduce(
                train, args=args, num_workers=2, implementation="hopsml", progress=False, keep_warm=60.0
            ).value
            options.say(f"{way} at {rate}: {values[way]}")
    study = Study(
        "exchange",
        f"Digits by two workers: accuracy after {EPOCHS} epochs, mean of {len(seeds)} seeds",
        "how gradients travel",
        "accuracy on 517 other digits (%)",
        tuple(Line(f"rate {rate}", values) for rate, values in found.items()),
        (f"exchange: Keras fit, a global batch of {BATCH}, momentum SGD, gradients over sockets",),
        is_bar=True,
    )
    return study, [_lost(way, rate, found[rate]) for rate in RATES for way in WAYS if way != "plain"]


def _lost(way: str, rate: float, values: dict[str, list[float]]) -> Figure:
    points = [before - now for before, now in zip(values["plain"], values[way], strict=True)]
    name = f"exchange.lost_points_{way.replace(' ', '_')}_{rate}"
    mean = round(statistics.fmean(points), 2)
    return Figure(name, mean, "points", len(points), round(min(points), 2), round(max(points), 2), "the plain exchange")


def train(seeds: list[int], rate: float, settings: dict[str, Any]) -> list[float]:
    """Return the accuracy with each seed."""
    import keras
    import tensorflow as tf

    strategy = strategy_apart(settings)
    images, targets = (one[: digits.TRAINED] for one in digits.samples())
    found = []
    for seed in seeds:
        steps = EPOCHS * digits.TRAINED // BATCH
        with strategy.scope():
            net = digits.keras_net(seed)
            falling = keras.optimizers.schedules.PolynomialDecay(rate, steps, 0.0, 2.0)
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            net.compile(keras.optimizers.SGD(falling, momentum=0.9), loss)
        data = tf.data.Dataset.from_tensor_slices((images[..., None], targets)).shuffle(digits.TRAINED, seed=seed)
        net.fit(data.batch(BATCH), epochs=EPOCHS, verbose=0)
        found.append(digits.keras_accuracy(net))
    return found


def strategy_apart(settings: dict[str, Any]) -> Any:
    """Return hopsml's strategy over a group of this run's workers whose members share no memory."""
    import hopsml
    from hopsml.cluster.shared.spec import GradientSettings
    from hopsml.cluster.worker.context import current
    from hopsml.collective import Group
    from hopsml.training.tensorflow import setup
    from hopsml.training.tensorflow.distribution.collective_strategy import CollectiveStrategy

    context = current()
    assert context is not None
    with socket.create_server(("127.0.0.1", 0)) as listener:
        addresses = hopsml.distributed.exchange(f"127.0.0.1:{listener.getsockname()[1]}")
        group = Group.form(context.rank, addresses, secret=SECRET, listener=listener.detach())
    group.make_default()
    setup.prepare()
    return CollectiveStrategy(GradientSettings(**settings))
