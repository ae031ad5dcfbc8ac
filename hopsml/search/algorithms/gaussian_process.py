"""Gaussian process with a Matern 5/2 kernel, and the expected improvement over the best observation.

Rasmussen and Williams 2006, "Gaussian processes for machine learning", chapters 2, 4, 5; Snoek et al. 2012, "Practical
Bayesian optimization of machine learning algorithms", NIPS 25. The logarithm of the expected improvement as in Ament et
al. 2023, "Unexpected improvements to expected improvement for Bayesian optimization", NeurIPS 36.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float64]]

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


def fitted(rows: Array, values: Array) -> Kernel:
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
