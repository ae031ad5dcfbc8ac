"""Reference implementations of LARS, LAMB and the RMSprop warm-up from their papers, in float64."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

Arrays = list[np.ndarray[Any, Any]]


def problem(seed: int = 3) -> Arrays:
    """Return variables of a small network: matrices, a convolution's kernel, a bias, a scale, a scalar, zeros, one row."""
    random = np.random.default_rng(seed)
    shapes = [(7, 5), (3, 3, 2, 4), (5,), (4,), (), (1, 6), (6, 3)]
    values = [np.float64(random.normal(size=shape)) for shape in shapes]
    values[-1] = np.zeros((6, 3))
    return [np.asarray(value) for value in values]


@functools.cache
def gradients(step: int, index: int, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return the input of every implementation at this step; none for the last variable in the first steps."""
    random = np.random.default_rng([step, index])
    value = np.asarray(random.normal(size=shape)) * 0.3
    return value * 0 if shape == (6, 3) and step < 3 else value


def length(x: np.ndarray[Any, Any]) -> float:
    """Return the Euclidean norm, term by term."""
    return math.sqrt(sum(float(value) ** 2 for value in x.ravel()))


def lars(steps: int, rates: list[float], momentum: float = 0.9, decay: float = 1e-2, trust: float = 0.02) -> Arrays:
    """Return the step of 1708.03888, algorithm 1, with momentum corrected at changes of the rate (1706.02677, section 3)."""
    weights = problem()
    velocities = [np.zeros_like(each) for each in weights]
    for step in range(steps):
        factor = momentum * (rates[step] / rates[step - 1] if step else 1.0)
        for index, weight in enumerate(weights):
            gradient = gradients(step, index, weight.shape)
            local = 1.0
            if weight.ndim > 1:
                norms = length(weight), length(gradient)
                if norms[0] > 0 and norms[1] > 0:
                    local = trust * norms[0] / (norms[1] + decay * norms[0])
                gradient = gradient + decay * weight
            velocities[index] = factor * velocities[index] + rates[step] * local * gradient
            weights[index] = weight - velocities[index]
    return weights


def lamb(steps: int, rates: list[float], decay: float = 1e-2, epsilon: float = 1e-6) -> Arrays:
    """Return the step of 1904.00962, algorithm 2."""
    weights = problem()
    first, second = [np.zeros_like(each) for each in weights], [np.zeros_like(each) for each in weights]
    for step in range(steps):
        for index, weight in enumerate(weights):
            gradient = gradients(step, index, weight.shape)
            first[index] = 0.9 * first[index] + 0.1 * gradient
            second[index] = 0.999 * second[index] + 0.001 * gradient**2
            mean, square = first[index] / (1 - 0.9 ** (step + 1)), second[index] / (1 - 0.999 ** (step + 1))
            update, ratio = mean / (np.sqrt(square) + epsilon), 1.0
            if weight.ndim > 1:
                update = update + decay * weight
                if length(weight) > 0 and length(update) > 0:
                    ratio = length(weight) / length(update)
            weights[index] = weight - rates[step] * ratio * update
    return weights


def rmsprop_warmup(steps: int, rates: list[float], steps_per_epoch: int, c: float = 10, p: float = 5) -> Arrays:
    """Return the step of 1711.04325, section 2.1, with the change around epoch ``c``, ``p`` epochs wide."""
    weights = problem()
    moments, deltas = [np.zeros_like(each) for each in weights], [np.zeros_like(each) for each in weights]
    for step in range(steps):
        epoch = step / steps_per_epoch
        share = math.exp(2 * (epoch - c) / p) / 2 if epoch < c else min(0.5 + (epoch - c) / p, 1.0)
        for index, weight in enumerate(weights):
            gradient = gradients(step, index, weight.shape)
            moments[index] = 0.99 * moments[index] + 0.01 * gradient**2
            rms = (1 - share) * 3e-4 / rates[step]
            deltas[index] = 0.9 * deltas[index] - (share + rms / (np.sqrt(moments[index]) + 1e-8)) * gradient
            weights[index] = weight + rates[step] * deltas[index]
    return weights


def error(found: Any, expected: Arrays) -> float:
    """Return the largest difference, relative to the largest value of the variable or to 1."""
    return max(
        float(np.max(np.abs(np.asarray(one, np.float64) - other)) / max(1.0, np.max(np.abs(other))))
        for one, other in zip(found, expected, strict=True)
    )
