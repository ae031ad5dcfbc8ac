"""Optimizer update rules as functions of arrays, with the same code for numpy, TensorFlow and torch; pure.

They use operators and the functions ``sqrt``, ``sum`` and ``where`` of a ``space``: numpy and torch can be passed as
they are. Weights, gradients and the optimizer's state are arguments; new values are returned and nothing is modified.
``layerwise`` is False for variables whose norm is not meaningful: biases, the scales of normalisations, scalars.
Their ratio is 1, and they do not decay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def reduce_moments(mean: Any, variance: Any, average: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Return mean and variance over all workers, by the law of total variance.

    E[variance] + E[mean^2] - E[mean]^2; rounding never makes a variance negative.

    Args:
        mean: this worker's mean.
        variance: this worker's variance.
        average: averages an array over the workers, which have all seen the same number of samples.
    """
    whole = average(mean)
    variance = average(variance + mean * mean) - whole * whole
    return whole, variance * (variance > 0)


def is_layerwise(shape: Sequence[Any]) -> bool:
    """Return True if a variable of this shape has its own ratio and decay: one of two axes or more."""
    return len(shape) > 1


def norm(x: Any, space: Any) -> Any:
    """Return the Euclidean norm over all axes."""
    return space.sqrt(space.sum(x * x))


def lars_ratio(
    weight_norm: Any, gradient_norm: Any, eta: float, weight_decay: float, epsilon: float, space: Any
) -> Any:
    """Return eta * |w| / (|g| + weight_decay * |w| + epsilon), or 1 if a norm is 0: arXiv 1708.03888, section 4."""
    known = (weight_norm > 0) & (gradient_norm > 0)
    one = weight_norm * 0.0 + 1.0
    below = space.where(known, gradient_norm + weight_decay * weight_norm + epsilon, one)
    return space.where(known, eta * weight_norm / below, one)


def lamb_ratio(weight_norm: Any, update_norm: Any, space: Any) -> Any:
    """Return |w| / |u|, or 1 if a norm is 0: arXiv 1904.00962, algorithm 2 with the identity for phi."""
    known = (weight_norm > 0) & (update_norm > 0)
    one = weight_norm * 0.0 + 1.0
    return space.where(known, weight_norm / space.where(known, update_norm, one), one)


def momentum(
    weight: Any, gradient: Any, velocity: Any, rate: Any, momentum: Any, absorbs: bool = False
) -> tuple[Any, Any]:
    """Return the new weight and velocity of gradient descent with momentum.

    With ``absorbs`` the velocity includes the rate (as in Keras's SGD): a change of the rate then needs the corrected
    momentum m * new / old (arXiv 1706.02677, section 3). Without it, as in torch, no correction is needed.
    """
    if absorbs:
        velocity = momentum * velocity + rate * gradient
        return weight - velocity, velocity
    velocity = momentum * velocity + gradient
    return weight - rate * velocity, velocity


def lars(
    weight: Any,
    gradient: Any,
    velocity: Any,
    rate: Any,
    space: Any,
    *,
    momentum_factor: Any = 0.9,
    weight_decay: float = 0.0,
    eta: float = 0.001,
    epsilon: float = 0.0,
    layerwise: bool = True,
    absorbs: bool = False,
) -> tuple[Any, Any]:
    """Return the new weight and velocity by LARS: arXiv 1708.03888, algorithm 1.

    ``absorbs`` is explained at ``momentum``.
    """
    if layerwise:
        ratio = lars_ratio(norm(weight, space), norm(gradient, space), eta, weight_decay, epsilon, space)
        gradient = ratio * (gradient + weight_decay * weight)
    return momentum(weight, gradient, velocity, rate, momentum_factor, absorbs)


def lamb(
    weight: Any,
    gradient: Any,
    first: Any,
    second: Any,
    rate: Any,
    step: Any,
    space: Any,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-6,
    weight_decay: float = 0.0,
    layerwise: bool = True,
) -> tuple[Any, Any, Any]:
    """Return the new weight, first and second moment by LAMB: arXiv 1904.00962, algorithm 2.

    ``step`` is 1 for the first step.
    """
    first = beta1 * first + (1 - beta1) * gradient
    second = beta2 * second + (1 - beta2) * gradient * gradient
    update = first / (1 - beta1**step) / (space.sqrt(second / (1 - beta2**step)) + epsilon)
    if layerwise:
        update = update + weight_decay * weight
        rate = rate * lamb_ratio(norm(weight, space), norm(update, space), space)
    return weight - rate * update, first, second


def rmsprop_warmup(
    weight: Any,
    gradient: Any,
    velocity: Any,
    second: Any,
    rate: Any,
    share: Any,
    space: Any,
    *,
    momentum_factor: float = 0.9,
    rho: float = 0.99,
    rms_rate: float = 3e-4,
    epsilon: float = 1e-8,
    weight_decay: float = 0.0,
    layerwise: bool = True,
) -> tuple[Any, Any, Any]:
    """Return the new weight, velocity and second moment between RMSprop and SGD: arXiv 1711.04325, section 2.1.

    ``share`` is SGD's share at this step (``schedules.sgd_share``). ``layerwise`` affects the weight decay only.
    """
    if layerwise:
        gradient = gradient + weight_decay * weight
    second = rho * second + (1 - rho) * gradient * gradient
    rms_share = (1 - share) * rms_rate / rate
    velocity = momentum_factor * velocity - (share + rms_share / (space.sqrt(second) + epsilon)) * gradient
    return weight + rate * velocity, velocity, second


def smooth_labels(one_hot: Any, smoothing: float) -> Any:
    """Return smoothed targets (1 - s) y + s / n over the n classes of the last axis: 1512.00567, section 7."""
    return one_hot * (1 - smoothing) + smoothing / one_hot.shape[-1]
