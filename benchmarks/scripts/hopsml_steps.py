"""Groups of hopsml on this machine that serve steps: one for each method named on the command line."""

from __future__ import annotations

import sys

import hopsml
from benchmarks.scripts import model, turns


def train(socket: str, way: str) -> None:
    """Serve steps with the strategy of a method.

    ``hopsml`` is the strategy that hopsml offers, ``hopsml-collective`` the one over its own collective,
    ``hopsml-plain`` TensorFlow's own, in which hopsml's reduction is installed as well, and ``hopsml-own`` that with
    TensorFlow's reduction restored.
    """
    import tensorflow as tf  # noqa: F401 as in user code: what a function imports is preloaded

    strategy = model.plain_strategy() if way in ("hopsml-plain", "hopsml-own") else hopsml.tensorflow.strategy()
    if way == "hopsml-own":
        del strategy.extended._cross_device_ops._all_reduce  # hopsml's reduction hides the class's own
    turns.serve(socket, way, model.rank(), model.build(strategy))


if __name__ == "__main__":
    socket, workers, ways = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    runs = [
        hopsml.experiment.submit(
            train,
            args={"socket": socket, "way": way},
            num_workers=workers,
            implementation="hopsml" if way == "hopsml-collective" else "tensorflow",
            progress=False,
        )
        for way in ways
    ]
    for run in runs:
        run.result()
