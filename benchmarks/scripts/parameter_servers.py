"""A process of TensorFlow's ParameterServerStrategy by hand that serves steps: JOB INDEX SOCKET CLUSTER LOADS.

The coordinator (JOB chief) makes the steps; the workers and the parameter server wait for it. In a step every worker
reads all weights, makes gradients of their sizes and has them subtracted on the server. Only the end of the step waits
for the slowest worker, so this is the most that asynchronous training can gain.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from benchmarks import gradient_sets
from benchmarks.scripts import turns
from benchmarks.scripts.gradient_steps import Loads, Step


def step_of(coordinator: Any, strategy: Any, workers: int, load: str) -> Step:
    """Return a step of all workers for a set of gradients."""
    import tensorflow as tf

    with strategy.scope():
        weights = [tf.Variable(tf.ones(shape)) for shape in gradient_sets.shapes_of(load)]

    @tf.function(autograph=False)
    def of_worker() -> Any:
        values = [weight.read_value() * 1e-6 for weight in weights]
        for weight, gradient in zip(weights, values, strict=True):
            weight.assign_sub(gradient)
        return tf.reshape(values[0], [-1])[0]

    def step() -> None:
        for _ in range(workers):
            coordinator.schedule(of_worker)
        coordinator.join()

    return step


def main() -> None:
    """Serve until the server sends 0, or until killed."""
    job, index, path, described, loads = sys.argv[1:]
    import tensorflow as tf

    cluster = json.loads(described)
    if job != "chief":
        tf.distribute.Server(tf.train.ClusterSpec(cluster), job, int(index), protocol="grpc").join()
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec(cluster), rpc_layer="grpc")
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    workers = len(cluster["worker"])
    made = Loads(lambda load: step_of(coordinator, strategy, workers, load), most=1)
    turns.serve_all(path, 0, {f"parameter-server {load}": made.steps(load) for load in loads.split(",")})
    os._exit(0)


if __name__ == "__main__":
    main()
