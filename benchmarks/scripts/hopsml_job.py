"""A hopsml training job in the form that a user writes."""

from __future__ import annotations

import sys

import hopsml
from benchmarks.scripts import model


def train(folder: str, steps: int) -> None:
    """Train the model as the training function of the run."""
    import tensorflow as tf  # noqa: F401 as in user code: what a function imports is preloaded

    model.train(hopsml.tensorflow.strategy(), folder, steps)


if __name__ == "__main__":
    folder, workers, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    hopsml.experiment.collective_all_reduce(train, args={"folder": folder, "steps": steps}, num_workers=workers)
