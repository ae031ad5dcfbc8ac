"""A job of TensorFlowOnSpark with a chief and a worker."""

from __future__ import annotations

import sys
from typing import Any


def train(arguments: dict[str, Any], context: Any) -> None:
    """Train the model with the TF_CONFIG that the library sets."""
    from benchmarks.scripts import model

    model.train(model.plain_strategy(), arguments["folder"], arguments["steps"])


if __name__ == "__main__":
    from pyspark import SparkContext
    from tensorflowonspark import TFCluster

    given = {"folder": sys.argv[1], "steps": int(sys.argv[3])}
    cluster = TFCluster.run(
        SparkContext.getOrCreate(),
        train,
        given,
        num_executors=int(sys.argv[2]),
        num_ps=0,
        tensorboard=False,
        input_mode=TFCluster.InputMode.TENSORFLOW,
        master_node="chief",
    )
    cluster.shutdown()
