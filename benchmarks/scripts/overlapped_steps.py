"""One member of a group that trains with an emulated device: SOCKET RANK ADDRESSES BYTES.

A step waits as long as a device would compute, then its gradients of so many bytes are reduced over sockets and
applied. One process serves several methods: with the reduction inside the step, with the reduction during the next
step, and with none. The first turn, ``calibrate``, measures the time of an all-reduce; from then on the device computes
for the same time.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.scripts import turns

SECRET = b"not a secret: a benchmark on loopback"
TENSORS = 8
CALLS = 9  # of the all-reduce that is timed


def steps(settings: dict[str, Any] | None, size: int, device_s: list[float]) -> Callable[[], None]:
    """Return a step by a strategy with these settings; None: without a group."""
    import keras
    import tensorflow as tf

    from hopsml.cluster.shared.spec import GradientSettings
    from hopsml.training.tensorflow.distribution.collective_strategy import CollectiveStrategy

    alone = settings is None
    strategy = tf.distribute.get_strategy() if alone else CollectiveStrategy(GradientSettings(**(settings or {})))
    with strategy.scope():
        variables = [tf.Variable(tf.zeros([size // 4 // TENSORS])) for _ in range(TENSORS)]
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(variables)

    def compute() -> Any:
        time.sleep(device_s[0])
        return [0.5]

    def step() -> None:
        (value,) = tf.numpy_function(compute, [], [tf.float64], stateful=True)
        gradients = [tf.fill(variable.shape, tf.reshape(tf.cast(value, tf.float32), [])) for variable in variables]
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    train = tf.function(lambda: strategy.run(step))
    return lambda: train()


def main() -> None:
    """Serve until the server sends 0.

    The process exits without the frameworks' shutdown, in which members wait for each other.
    """
    path, rank, addresses, size = sys.argv[1:]
    import numpy as np

    from hopsml.collective.group import Group
    from hopsml.training.tensorflow import setup

    group = Group.form(int(rank), addresses.split(","), secret=SECRET)
    group.make_default()
    setup.prepare()
    device_s = [0.0]

    def calibrate(count: int) -> list[float]:
        """Measure the seconds of an all-reduce, the same on all ranks, and set the device's time."""
        array, taken = np.zeros(int(size) // 4, np.float32), []
        for _ in range(CALLS):
            begin = time.perf_counter()
            group.all_reduce(array, "sum", out=array)
            taken.append(time.perf_counter() - begin)
        device_s[0] = float(group.all_reduce(np.array(statistics.median(taken)), "max"))
        return [device_s[0]] * count

    ways: dict[str, dict[str, Any] | None] = {"alone": None, "in-step": {}, "beside": {"double_buffering": True}}
    made = {way: turns.one_by_one(steps(settings, int(size), device_s)) for way, settings in ways.items()}
    turns.serve_all(path, int(rank), {"calibrate": calibrate, **made})
    os._exit(0)


if __name__ == "__main__":
    main()
