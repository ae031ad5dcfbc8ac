"""A training of one worker and an evaluator, each on half of the cores: SOCKET FOLDER.

The training makes steps when asked. The evaluator, called for a checkpoint, sleeps until something is written to
FOLDER/go, and then computes until FOLDER/stop exists: the benchmark decides when it works, and when it costs nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import hopsml
from benchmarks.scripts import model, turns

WAY = "training"


def half(cores: Sequence[int], second: bool) -> set[int]:
    """Return one half of these cores, or the only core."""
    middle = len(cores) // 2
    return set(cores[middle:] if second or not middle else cores[:middle])


def train(socket: str, cores: list[int]) -> None:
    """Serve steps until the server sends 0."""
    import tensorflow as tf  # noqa: F401 as in user code: what a function imports is preloaded

    os.sched_setaffinity(0, half(cores, second=False))
    turns.serve(socket, WAY, 0, model.build(hopsml.tensorflow.strategy()))


def judge(checkpoint: Path, folder: str, cores: list[int]) -> int:
    """Apply the training's layers to all examples until stopped; return how many times."""
    import tensorflow as tf

    os.sched_setaffinity(0, half(cores, second=True))
    kernels = [tf.random.stateless_normal(shape, seed=(index, 3)) for index, shape in enumerate(model.LAYERS)]
    images = tf.random.stateless_uniform((model.EXAMPLES, model.LAYERS[0][0]), seed=(0, 3))

    @tf.function(autograph=False)
    def predict(hidden: tf.Tensor) -> tf.Tensor:
        for kernel in kernels:
            hidden = tf.nn.relu(hidden @ kernel)
        return tf.reduce_sum(hidden)

    predict(images)  # traced
    Path(folder, f"ready-{checkpoint.name}").touch()
    with open(Path(folder, "go")) as told:
        told.read()
    done = 0
    while not Path(folder, "stop").exists():
        float(predict(images))
        done += 1
    return done


def main(socket: str, folder: str) -> None:
    """Run training and evaluation at once, until the training is ended by the server."""
    cores = sorted(os.sched_getaffinity(0))
    training = hopsml.experiment.submit(
        train, args={"socket": socket, "cores": cores}, num_workers=1, progress=False, preload=["tensorflow"]
    )
    args = {"folder": folder, "cores": cores}
    evaluation = hopsml.experiment.submit_evaluation(judge, training, args=args, progress=False)
    Path(folder, "run.part").write_text(training.run_dir)
    Path(folder, "run.part").rename(Path(folder, "run"))
    training.result()
    evaluation.result()
    hopsml.experiment.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
