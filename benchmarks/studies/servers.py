"""Samples per second over the number of workers: by parameter servers, and by all-reduce."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.figures import Figure, measured
from benchmarks.options import Options
from benchmarks.studies import digits
from benchmarks.studies.study import Line, Study

BATCH, STEPS, WARM_UP, ROUNDS = 32, 150, 30, 3
REDUCED, SERVED = "all-reduce", "one parameter server"


def run(options: Options) -> tuple[Study, list[Figure]]:
    """Run the study and return the speed of all-reduce against parameter servers with most workers."""
    from hopsml import experiment

    found: dict[str, dict[str, list[float]]] = {REDUCED: {}, SERVED: {}}
    numbers = options.choose((1, 2, 3, 4), (1, 2))
    given: dict[str, Any] = {"progress": False, "keep_warm": 60.0}
    for workers in numbers:
        args = {"algorithm": "sync_sgd", "workers": workers}
        reduced = experiment.collective_all_reduce(train, args=args, num_workers=workers, **given)
        found[REDUCED][str(workers)] = reduced.value
        args = {"algorithm": "async_sgd", "workers": workers}
        served = experiment.parameter_server(train, args=args, num_workers=workers, num_ps=1, **given)
        found[SERVED][str(workers)] = served.value
        options.say(f"{workers} worker(s): {reduced.value}, {served.value}")
    study = Study(
        "servers",
        "Digits, convolutional net: throughput on two cores, all processes on one machine",
        "workers",
        "samples a second",
        tuple(Line(label, values) for label, values in found.items()),
        (
            f"servers: {BATCH} samples a worker and step, {ROUNDS} rounds of {STEPS} steps; with a chief beside a server",
        ),
    )
    most = str(numbers[-1])
    return study, [measured("servers.reduced_per_s", found[REDUCED][most], "samples/s", SERVED, found[SERVED][most])]


def train(algorithm: str, workers: int) -> list[float]:
    """Return the samples per second of all workers, in each round."""
    import keras

    import hopsml

    def compiled() -> Any:
        net = digits.keras_net(1)
        net.compile(keras.optimizers.SGD(0.05), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return net

    def batches() -> Any:
        import tensorflow as tf

        images, targets = digits.samples()
        return tf.data.Dataset.from_tensor_slices((images[..., None], targets)).batch(BATCH, drop_remainder=True)

    loop = hopsml.tensorflow.TrainingLoop(compiled, batches, algorithm)  # type: ignore[arg-type]
    loop.run(WARM_UP)
    found = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        loop.run(STEPS)
        found.append(workers * BATCH * STEPS / (time.perf_counter() - began))
    return found
