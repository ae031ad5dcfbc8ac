"""Times of one update of each optimizer on ResNet-50's variables, and errors of 100 steps: python -m ... ROUNDS."""

from __future__ import annotations

import json
import math
import random
import sys
import time
from typing import Any

import numpy as np

STEPS = 100
UPDATES = 3  # per round


def timed(rounds: int) -> dict[str, list[float]]:
    """Return the seconds of an update by optimizer and round."""
    import keras
    import tensorflow as tf

    from hopsml.training.tensorflow.keras.large_batch import LAMB, LARS

    shapes = [tuple(one.shape) for one in keras.applications.ResNet50(weights=None).trainable_variables]
    gradients = [tf.random.normal(shape, stddev=1e-3) for shape in shapes]
    made = {"sgd": keras.optimizers.SGD(1e-3, 0.9), "lars": LARS(1e-3), "lamb": LAMB(1e-3, weight_decay=1e-4)}
    step_of = {name: _step(one, shapes, gradients) for name, one in made.items()}
    seconds: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(rounds):
        for name in random.sample(list(made), len(made)):
            began = time.perf_counter()
            for _ in range(UPDATES):
                step_of[name]()
            seconds[name].append((time.perf_counter() - began) / UPDATES)
    return seconds


def _step(optimizer: Any, shapes: list[Any], gradients: list[Any]) -> Any:
    import tensorflow as tf

    variables = [tf.Variable(tf.random.normal(shape, stddev=0.05)) for shape in shapes]
    optimizer.build(variables)

    @tf.function
    def update() -> None:
        optimizer.apply(gradients, variables)

    update()
    update()
    return update


def errors() -> dict[str, float]:
    """Return the errors of float32 against the papers' formulas in float64, after 100 steps."""
    from hopsml.training.tensorflow.keras.large_batch import LAMB, LARS

    return {
        "lars": _error(LARS(0.1, weight_decay=1e-2, trust=0.02), _lars),
        "lamb": _error(LAMB(0.1, weight_decay=1e-2), _lamb),
    }


def _error(optimizer: Any, formula: Any) -> float:
    import tensorflow as tf

    source = np.random.default_rng(5)
    weights = [source.normal(size=shape) for shape in ((32, 16), (3, 3, 4, 8), (16,))]
    gradients = [[source.normal(size=one.shape) * 0.3 for one in weights] for _ in range(STEPS)]
    variables = [tf.Variable(one, dtype="float32") for one in weights]
    for of_step in gradients:
        optimizer.apply([tf.constant(one, "float32") for one in of_step], variables)
    expected = [formula(one, [of_step[index] for of_step in gradients]) for index, one in enumerate(weights)]
    return max(
        float(np.max(np.abs(one.numpy() - other)) / max(1.0, np.max(np.abs(other))))
        for one, other in zip(variables, expected, strict=True)
    )


def _lars(weight: Any, gradients: list[Any]) -> Any:
    velocity = np.zeros_like(weight)
    for gradient in gradients:
        local = 1.0
        if weight.ndim > 1:
            of_weight, of_gradient = math.sqrt((weight**2).sum()), math.sqrt((gradient**2).sum())
            local, gradient = 0.02 * of_weight / (of_gradient + 1e-2 * of_weight), gradient + 1e-2 * weight
        velocity = 0.9 * velocity + 0.1 * local * gradient
        weight = weight - velocity
    return weight


def _lamb(weight: Any, gradients: list[Any]) -> Any:
    first, second = np.zeros_like(weight), np.zeros_like(weight)
    for step, gradient in enumerate(gradients, 1):
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        update, ratio = first / (1 - 0.9**step) / (np.sqrt(second / (1 - 0.999**step)) + 1e-6), 1.0
        if weight.ndim > 1:
            update = update + 1e-2 * weight
            ratio = math.sqrt((weight**2).sum() / (update**2).sum())
        weight = weight - 0.1 * ratio * update
    return weight


if __name__ == "__main__":
    print(json.dumps({"errors": errors(), "seconds": timed(int(sys.argv[1]))}))
