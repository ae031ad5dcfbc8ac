"""Step times of the methods to merge gradients: two TensorFlow workers on this machine.

    python -m benchmarks merge [--rounds 15] [--steps 5] [--workers 2] [--json FILE]

Three loads: 160 gradients of Inception v1's sizes (28 MB), 160 of 4 KB, and the training step of the digits network.
Every method is traced first; then the methods alternate, a few steps each, round after round, so that other load on the
machine affects all of them alike. Shown: the median over the rounds of the time of a step, and the middle half of the
rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.gradient_sets import inception_shapes, shapes_of

# Name, merge scope (None = all), scoped allocator; the first is TensorFlow's own method, unchanged.
WAYS: list[tuple[str, int | None, bool | None]] = [
    ("tensorflow", None, None),
    ("packs 1", 1, False),
    ("packs 32", 32, False),
    ("packs all", None, False),
    ("scoped 1", 1, True),
    ("scoped 32", 32, True),
    ("scoped all", None, True),
]


def reduction_step(strategy: Any, shapes: list[tuple[int, ...]]) -> Callable[[], Any]:
    """Return a step that only makes gradients of these shapes and reduces them."""
    import tensorflow as tf

    values = [tf.ones(shape) for shape in shapes]

    @tf.function
    def step(values: Any) -> Any:
        def make_and_reduce(values: Any) -> Any:
            gradients = [value * 0.5 for value in values]
            reduced = tf.distribute.get_replica_context().all_reduce("SUM", gradients)
            return tf.add_n([tf.reshape(value, [-1])[0] for value in reduced])

        return strategy.run(make_and_reduce, args=(values,))

    return lambda: float(step(values))


def digits_step(strategy: Any) -> Callable[[], Any]:
    """Return one training step of the digits network: forward, backward, reduction, update."""
    import keras
    import tensorflow as tf

    with strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Input((8, 8, 1)),
                keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
                keras.layers.BatchNormalization(),
                keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
                keras.layers.MaxPooling2D(),
                keras.layers.Flatten(),
                keras.layers.Dense(64, activation="relu"),
                keras.layers.Dense(10),
            ]
        )
        optimizer = keras.optimizers.Adam()
        optimizer.build(model.trainable_variables)
    images, labels = tf.random.normal((64, 8, 8, 1)), tf.random.uniform((64,), 0, 10, tf.int32)

    def train(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            losses = keras.losses.sparse_categorical_crossentropy(
                labels, model(images, training=True), from_logits=True
            )
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    step = tf.function(lambda images, labels: strategy.run(train, args=(images, labels)))
    return lambda: float(step(images, labels))


def measure(rounds: int, steps: int) -> dict[str, dict[str, list[float]]]:
    """Return the milliseconds of a step for each load and method, one value per round; runs in every worker."""
    import hopsml

    strategy = hopsml.tensorflow.strategy()
    results: dict[str, dict[str, list[float]]] = {}
    loads: dict[str, Callable[[], Callable[[], Any]]] = {
        "inception v1, 160 gradients, 28 MB": lambda: reduction_step(strategy, inception_shapes()),
        "160 gradients of 4 KB": lambda: reduction_step(strategy, shapes_of("160x4kB")),
        "digits network, whole step": lambda: digits_step(strategy),
    }
    for load, make in loads.items():
        ways = {}
        for name, scope, scoped_allocator in WAYS:
            install(strategy, scope, scoped_allocator)
            ways[name] = make()
            ways[name]()  # traced now, while this method is installed
            ways[name]()
        results[load] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, step in ways.items():
                begin = time.perf_counter()
                for _ in range(steps):
                    step()
                results[load][name].append((time.perf_counter() - begin) * 1000 / steps)
    return results


def install(strategy: Any, scope: int | None, scoped_allocator: bool | None) -> None:
    """Make the strategy reduce by this method from now on; None restores TensorFlow's own."""
    from hopsml.training.tensorflow.distribution.merging import GradientReducer

    if scoped_allocator is not None:
        GradientReducer(strategy, scope, scoped_allocator).install()
    else:
        vars(strategy.extended._cross_device_ops).pop("_all_reduce", None)


def run_workers(workers: int, arguments: list[str]) -> dict[str, dict[str, list[float]]]:
    """Start the workers and return what rank 0 has measured."""
    ports = []
    for _ in range(workers):  # bound, so that no other process takes the ports before TensorFlow does
        port = socket.socket()
        port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        port.bind(("127.0.0.1", 0))
        ports.append(port)
    cluster = {"worker": [f"127.0.0.1:{port.getsockname()[1]}" for port in ports]}
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        for rank in range(workers):
            environment = {
                **os.environ,
                "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}}),
                "TF_GRPC_REUSE_PORT": "1",
                "TF_CPP_MIN_LOG_LEVEL": "2",
                "CUDA_VISIBLE_DEVICES": "",
            }
            command = [
                sys.executable,
                "-m",
                "benchmarks.merge",
                *arguments,
                "--result",
                str(Path(folder) / f"{rank}.json"),
            ]
            processes.append(subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL))
        try:
            if any(process.wait() for process in processes):
                raise SystemExit("a worker failed; run one with TF_CONFIG by hand to see why")
        finally:
            for process in processes:
                if process.poll() is None:
                    process.send_signal(signal.SIGKILL)
                    process.wait()
            for port in ports:
                port.close()
        return dict(json.loads((Path(folder) / "0.json").read_text()))


def table(results: dict[str, dict[str, list[float]]]) -> str:
    """Return median and middle half of the rounds, in milliseconds, as a Markdown table."""
    lines = ["| load | way | median ms | middle half |", "|---|---|---|---|"]
    for load, ways in results.items():
        for name, values in ways.items():
            low, _, high = statistics.quantiles(values, n=4)
            lines.append(f"| {load} | {name} | {statistics.median(values):.1f} | {low:.1f} to {high:.1f} |")
    return "\n".join(lines)


def main(words: list[str] | None = None) -> None:
    """Measure and print the table; with ``--result``, run as a worker."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks merge", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15, help="turns of each way")
    parser.add_argument("--steps", type=int, default=5, help="steps in a turn")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", help="write every round's times to this file")
    parser.add_argument("--result", help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.result:
        Path(options.result).write_text(json.dumps(measure(options.rounds, options.steps)))
        return
    arguments = ["--rounds", str(options.rounds), "--steps", str(options.steps)]
    results = run_workers(options.workers, arguments)
    if options.json:
        Path(options.json).write_text(json.dumps(results))
    print(table(results))


if __name__ == "__main__":
    main()
