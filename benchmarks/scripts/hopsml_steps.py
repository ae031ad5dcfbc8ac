"""Groups of hopsml on this machine, for steps in turns: one for each way that is named."""

from __future__ import annotations

import sys

import hopsml
from benchmarks.scripts import model, turns


def train(socket: str, way: str) -> None:
    """``hopsml`` builds the strategy that hopsml offers, ``hopsml-collective`` the one over its own collective,
    ``hopsml-plain`` TensorFlow's own, where hopsml's reduction is in force as well; ``hopsml-own`` puts TensorFlow's back.
    """
    import tensorflow as tf  # noqa: F401 as in user code: what a function imports is preloaded

    strategy = model.plain_strategy() if way in ("hopsml-plain", "hopsml-own") else hopsml.tensorflow.strategy()
    if way == "hopsml-own":
        del strategy.extended._cross_device_ops._all_reduce  # hopsml's stands before the class's own
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
