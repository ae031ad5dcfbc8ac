"""A job of spark-tensorflow-distributor with a custom training loop."""

from __future__ import annotations

import sys


def train(folder: str, steps: int) -> None:
    """Train the model with TensorFlow's own strategy, as the library documents for custom loops."""
    from benchmarks.scripts import model

    model.train(model.plain_strategy(), folder, steps)


if __name__ == "__main__":
    from spark_tensorflow_distributor import MirroredStrategyRunner

    runner = MirroredStrategyRunner(num_slots=int(sys.argv[2]), use_gpu=False, use_custom_strategy=True)
    runner.run(train, folder=sys.argv[1], steps=int(sys.argv[3]))
