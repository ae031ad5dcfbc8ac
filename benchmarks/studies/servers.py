"""Samples per second over the number of workers: by parameter servers, and by all-reduce, for three kinds of models."""

from __future__ import annotations

import statistics
import time
from typing import Any

from benchmarks.figures import Figure, measured
from benchmarks.options import Options
from benchmarks.studies import digits
from benchmarks.studies.study import Line, Study

BATCH, STEPS, WARM_UP, ROUNDS = 32, 150, 30, 3
MODELS = ("convolutional", "recurrent", "fully connected")
REDUCED, SERVED = "all-reduce", {1: "one parameter server", 2: "two parameter servers"}
THROUGHPUT, EFFICIENCY = "samples a second", "efficiency (%)"


def run(options: Options) -> tuple[Study, list[Figure]]:
    """Run the study and return the speed of all-reduce against parameter servers with most workers."""
    numbers, servers = options.choose((1, 2, 3, 4), (1, 2)), options.choose((1, 2), (1,))
    steps, models = options.choose(STEPS, 20), options.choose(MODELS, MODELS[-1:])
    lines = []
    for model in models:
        for label, number_of_servers in ((REDUCED, 0), *((SERVED[number], number) for number in servers)):
            values = {str(workers): _measured(model, workers, number_of_servers, steps) for workers in numbers}
            options.say(f"{model}, {label}: {values}")
            lines.append(Line(label, values, f"{model}: {THROUGHPUT}"))
            lines.append(Line(label, efficiencies(values), f"{model}: {EFFICIENCY}"))
    lines.sort(key=lambda line: line.panel.endswith(EFFICIENCY))  # throughputs first
    study = Study(
        "servers",
        "Digits: throughput and efficiency on two cores, all processes on one machine",
        "workers",
        THROUGHPUT,
        tuple(lines),
        (
            f"servers: {BATCH} samples a worker and step, {ROUNDS} rounds of {steps} steps; servers have a chief, too; "
            "efficiency: throughput over that of one worker times the number of workers",
        ),
    )
    most = str(numbers[-1])
    reduced, served = (
        next(line.values[most] for line in lines if line.label == label) for label in (REDUCED, SERVED[1])
    )
    return study, [measured("servers.reduced_per_s", reduced, "samples/s", SERVED[1], served)]


def efficiencies(values: dict[str, list[float]]) -> dict[str, list[float]]:
    """Return throughputs in percent of the throughput of one worker times the number of workers."""
    alone = statistics.fmean(values["1"])
    return {workers: [100 * one / (alone * int(workers)) for one in each] for workers, each in values.items()}


def _measured(model: str, workers: int, servers: int, steps: int) -> list[float]:
    """Return the samples per second in each round."""
    from hopsml import experiment

    given: dict[str, Any] = {"num_workers": workers, "progress": False, "keep_warm": 60.0}
    args = {"model": model, "algorithm": "async_sgd" if servers else "sync_sgd", "workers": workers, "steps": steps}
    if servers:
        return list(experiment.parameter_server(train, args=args, num_ps=servers, **given).value)
    return list(experiment.collective_all_reduce(train, args=args, **given).value)


def train(model: str, algorithm: str, workers: int, steps: int) -> list[float]:
    """Return the samples per second of all workers, in each round."""
    import keras

    import hopsml

    def compiled() -> Any:
        net = digits.keras_models()[model]()
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
        loop.run(steps)
        found.append(workers * BATCH * steps / (time.perf_counter() - began))
    return found
