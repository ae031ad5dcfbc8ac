"""Gaussian process with a Matern 5/2 kernel: encoding of its inputs, and the expected improvement over the best.

Rasmussen and Williams 2006, "Gaussian processes for machine learning", chapters 2, 4, 5; Snoek et al. 2012, "Practical
Bayesian optimization of machine learning algorithms", NIPS 25. The logarithm of the expected improvement as in Ament et
al. 2023, "Unexpected improvements to expected improvement for Bayesian optimization", NeurIPS 36.

Points of the unit cube are encoded so that equal values have equal encodings, and categories are unordered: integers and
listed numbers are mapped to the middle of their share; a category gets one coordinate per value, so that two different
ones are as far apart as the ends of a scale; an inactive parameter has a separate encoding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hopsml.search.space.parameter import CATEGORICAL, Choice, Integers, LogIntegers, Parameter, is_same_value
from hopsml.search.space.space import Searchspace

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float64]]


NOT_THERE = 0.5


class FeatureEncoder:
    """Encoder of points of the unit cube as model inputs: one column per number, one-hot columns per category."""

    def __init__(self, space: Searchspace) -> None:
        self._parameters = list(space.parameters.values())
        self._place = {found.name: place for place, found in enumerate(self._parameters)}
        columns = [found.count if _is_category(found) else 1 for found in self._parameters]
        self.count = sum(int(column or 1) for column in columns)
        starts = [sum(int(column or 1) for column in columns[:place]) for place in range(len(columns))]
        # Coordinates of a point that are features without a change: (coordinate, feature).
        self.smooth = [
            (place, starts[place])
            for place, found in enumerate(self._parameters)
            if found.count is None and not found.when
        ]

    def of(self, points: Array) -> Array:
        """Return a row of model inputs for each row of ``points``."""
        import numpy as np

        there: dict[str, Any] = {}
        levels: dict[str, Any] = {}
        for found in self._parameters:
            if found.count is not None:
                levels[found.name] = _levels(found, points[:, self._place[found.name]])
        columns = []
        for place, found in enumerate(self._parameters):
            here = self._there(found, levels, there, len(points))
            if _is_category(found):
                ones = np.eye(int(found.count or 1))[levels[found.name]] / math.sqrt(2.0)
                columns.append(ones * here[:, None])
                continue
            column = points[:, place] if found.count is None else _units(found, levels[found.name])
            columns.append(np.where(here, column, NOT_THERE)[:, None])
        return np.hstack(columns)

    def _there(self, found: Parameter, levels: dict[str, Any], known: dict[str, Any], rows: int) -> Any:
        """Return for each row True if the parameter is active, that is, its condition is met."""
        import numpy as np

        if found.name not in known:
            here = np.ones(rows, dtype=bool)
            for name, allowed in found.when.items():
                other = self._parameters[self._place[name]]
                here &= np.isin(levels[name], [_level(other, value) for value in allowed])
                here &= self._there(other, levels, known, rows)
            known[found.name] = here
        return known[found.name]


def _is_category(found: Parameter) -> bool:
    return found.kind == CATEGORICAL


def _levels(found: Parameter, units: Array) -> Any:
    """Return the index of the value to which each unit belongs."""
    import numpy as np

    count = int(found.count or 1)
    if isinstance(found, LogIntegers):
        bottom, top = math.log(found.low - 0.5), math.log(found.high + 0.5)
        exact = np.exp(bottom + np.clip(units, 0.0, 1.0) * (top - bottom))
        return np.clip(np.rint(exact), found.low, found.high).astype(np.int64) - found.low
    return np.clip((units * count).astype(np.int64), 0, count - 1)


def _level(found: Parameter, value: Any) -> int:
    if isinstance(found, Choice):
        return next(place for place, known in enumerate(found.values) if is_same_value(known, value))
    assert isinstance(found, Integers)
    return int(value) - found.low


def _units(found: Parameter, levels: Any) -> Any:
    """Return the middle of the share of each level, as ``Parameter.unit`` does."""
    import numpy as np

    if isinstance(found, LogIntegers):
        bottom, top = math.log(found.low - 0.5), math.log(found.high + 0.5)
        return (np.log(levels + found.low) - bottom) / (top - bottom)
    return (levels + 0.5) / int(found.count or 1)


LENGTHS, NOISES, VARIANCES = (0.02, 20.0), (1e-6, 0.1), (0.05, 20.0)  # bounds of the fitted hyper-parameters
JITTER = 1e-9
SQRT5 = math.sqrt(5.0)


@dataclass(frozen=True)
class Kernel:
    """Hyper-parameters of a Matern 5/2 kernel: signal variance, length scale of each feature, noise variance."""

    variance: float
    lengths: tuple[float, ...]
    noise: float

    def between(self, rows: Array, others: Array) -> Array:
        """Return the covariance of each row with each of the others, without noise."""
        import numpy as np
        from scipy.spatial.distance import cdist

        scaled = SQRT5 * cdist(rows / np.array(self.lengths), others / np.array(self.lengths))
        covariance: Array = self.variance * (1.0 + scaled + scaled**2 / 3.0) * np.exp(-scaled)
        return covariance


def fit_kernel(rows: Array, values: Array) -> Kernel:
    """Return the kernel with the greatest posterior density (MAP estimate).

    The prior expects lengths that grow with the root of the number of features (Hvarfner et al. 2024, "Vanilla Bayesian
    optimization performs great in high dimensions", ICML), and little noise.

    Args:
        rows: array (observations, features).
        values: observed values, of mean 0 and variance 1.
    """
    import numpy as np
    from scipy.optimize import minimize

    features = rows.shape[1]
    length = math.log(0.4) + 0.5 * math.log(features)
    expected = np.array([0.0, *[length] * features, math.log(1e-5)])
    width = np.array([1.0, *[1.0] * features, 2.0])
    bounds = [tuple(map(math.log, pair)) for pair in (VARIANCES, *[LENGTHS] * features, NOISES)]
    squares = (rows.T[:, :, None] - rows.T[:, None, :]) ** 2

    def penalised(logarithms: Array) -> tuple[float, Array]:
        value, gradient = log_likelihood(logarithms, squares, values)
        away = (logarithms - expected) / width
        return 0.5 * float(away @ away) - value, away / width - gradient

    starts = [expected, expected + np.array([0.0, *[-1.2] * features, 4.0])]
    found = [
        minimize(penalised, start, jac=True, bounds=bounds, method="L-BFGS-B", options={"maxiter": 60})
        for start in starts
    ]
    variance, *lengths, noise = np.exp(min(found, key=lambda result: float(result.fun)).x).tolist()
    return Kernel(variance, tuple(lengths), noise)


def log_likelihood(logarithms: Array, squares: Array, values: Array) -> tuple[float, Array]:
    """Return the log marginal likelihood and its gradient (Rasmussen and Williams 2006, equations 5.8 and 5.9).

    Args:
        logarithms: logarithms of the variance, of each length, of the noise.
        squares: array (features, observations, observations) of squared distances.
        values: observed values.
    """
    import numpy as np
    from scipy.linalg import cho_solve, cholesky

    variance, noise = math.exp(logarithms[0]), math.exp(logarithms[-1])
    scaled_squares = squares * np.exp(-2.0 * logarithms[1:-1])[:, None, None]
    scaled = SQRT5 * np.sqrt(scaled_squares.sum(axis=0))
    decay = np.exp(-scaled)
    covariance = variance * (1.0 + scaled + scaled**2 / 3.0) * decay
    factor = cholesky(covariance + (noise + JITTER) * np.eye(len(values)), lower=True, check_finite=False)
    weights = cho_solve((factor, True), values, check_finite=False)
    likelihood = -0.5 * values @ weights - np.log(np.diag(factor)).sum() - 0.5 * len(values) * math.log(2.0 * math.pi)
    inner = np.outer(weights, weights) - cho_solve((factor, True), np.eye(len(values)), check_finite=False)
    by_length = inner * (variance * 5.0 / 3.0 * (1.0 + scaled) * decay)
    gradient = [
        (inner * covariance).sum(),
        *np.einsum("ij,kij->k", by_length, scaled_squares),
        noise * np.trace(inner),
    ]
    return float(likelihood), 0.5 * np.array(gradient)


class Posterior:
    """Gaussian process conditioned on observations: predicts mean and deviation at other points."""

    def __init__(self, kernel: Kernel, rows: Array, values: Array) -> None:
        import numpy as np
        from scipy.linalg import cho_factor, cho_solve

        self.kernel, self.rows = kernel, rows
        covariance = kernel.between(rows, rows) + (kernel.noise + JITTER) * np.eye(len(rows))
        self._factor = cho_factor(covariance, lower=True, check_finite=False)
        self._weights: Array = cho_solve(self._factor, values, check_finite=False)

    def at(self, rows: Array) -> tuple[Array, Array]:
        """Return the predicted mean and standard deviation of the noise-free function at each row."""
        import numpy as np
        from scipy.linalg import solve_triangular

        covariance = self.kernel.between(self.rows, rows)
        explained = solve_triangular(self._factor[0], covariance, lower=True, check_finite=False)
        variance = self.kernel.variance - np.einsum("ij,ij->j", explained, explained)
        return covariance.T @ self._weights, np.sqrt(np.maximum(variance, 1e-12))

    def slope(self, row: Array) -> tuple[float, float, Array, Array]:
        """Return the predicted mean and standard deviation at one row, and the gradient of each.

        The gradients are with respect to that row.
        """
        import numpy as np
        from scipy.linalg import cho_solve

        lengths = np.array(self.kernel.lengths)
        away = (row - self.rows) / lengths
        scaled = SQRT5 * np.sqrt(np.einsum("ij,ij->i", away, away))
        covariance = self.kernel.variance * (1.0 + scaled + scaled**2 / 3.0) * np.exp(-scaled)
        inner = -self.kernel.variance * 5.0 / 3.0 * (1.0 + scaled) * np.exp(-scaled)
        gradients = inner[:, None] * away / lengths  # gradient of the covariance with each observation
        solved = cho_solve(self._factor, covariance, check_finite=False)
        deviation = math.sqrt(max(self.kernel.variance - float(covariance @ solved), 1e-12))
        return (
            float(covariance @ self._weights),
            deviation,
            self._weights @ gradients,
            -(solved @ gradients) / deviation,
        )


def log_improvement(mean: Array, deviation: Array, best: float) -> Array:
    """Return the logarithm of the expected improvement over ``best``; larger values are better."""
    import numpy as np

    z = (mean - best) / deviation
    result: Array = _log_h(z) + np.log(deviation)
    return result


def log_improvement_slope(posterior: Posterior, row: Array, best: float) -> tuple[float, Array]:
    """Return the logarithm of the expected improvement over ``best`` at one row, and its gradient."""
    import numpy as np
    from scipy.special import log_ndtr

    mean, deviation, of_mean, of_deviation = posterior.slope(row)
    z = (mean - best) / deviation
    log_h = float(_log_h(np.array([z]))[0])
    # The derivative of h is the normal distribution function.
    of_z = math.exp(min(float(log_ndtr(z)) - log_h, 700.0))
    gradient = of_z * (of_mean - z * of_deviation) / deviation + of_deviation / deviation
    return log_h + math.log(deviation), gradient


def _log_h(z: Array) -> Array:
    """Return log(phi(z) + z Phi(z)), exact also where both terms nearly cancel (Ament et al. 2023, equation 9)."""
    import numpy as np
    from scipy.special import erfcx, log_ndtr

    half_log_2pi = 0.5 * math.log(2.0 * math.pi)
    low = np.minimum(z, -1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = math.sqrt(math.pi / 2.0) * erfcx(-low / math.sqrt(2.0)) * -low  # |z| Phi(z) / phi(z), below 1
        far = (
            -0.5 * low**2 - half_log_2pi + np.where(low > -1e4, np.log1p(-np.minimum(ratio, 1.0)), -2.0 * np.log(-low))
        )
        high = np.maximum(z, -1.0)
        near = np.log(np.exp(-0.5 * high**2 - half_log_2pi) + high * np.exp(log_ndtr(high)))
    result: Array = np.where(z < -1.0, far, near)
    return result
