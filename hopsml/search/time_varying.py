"""A Gaussian process over places of the unit cube whose values change with time.

Bogunovic et al. 2016, "Time-varying Gaussian process bandit optimization", AISTATS: the squared exponential kernel times
(1 - forgetting)^(|t - t'| / 2). The first column of a row is the time. What is unknown of the kernel is fitted by the
marginal likelihood (Rasmussen and Williams 2006, equation 5.8).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hopsml.search.gaussian_process import JITTER, Kernel

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float64]]

# Bounds of the logarithms of variance, length and noise, and of the forgetting itself.
BOUNDS = [
    (math.log(0.05), math.log(20.0)),
    (math.log(0.05), math.log(5.0)),
    (math.log(1e-4), math.log(1.0)),
    (0.0, 0.5),
]
START = (0.0, math.log(0.3), math.log(0.05), 0.05)


@dataclass(frozen=True)
class TimeVaryingKernel(Kernel):
    """``forgetting``: from 0, where time does not matter, to 1, where nothing of another time does."""

    forgetting: float = 0.0

    def between(self, rows: Array, others: Array) -> Array:
        """The covariance of each row with each of the others, noise left out."""
        import numpy as np
        from scipy.spatial.distance import cdist

        apart = np.abs(rows[:, :1] - others[:, 0])
        squared = cdist(rows[:, 1:] / self.lengths[0], others[:, 1:] / self.lengths[0], "sqeuclidean")
        covariance: Array = self.variance * np.exp(-0.5 * squared) * (1.0 - self.forgetting) ** (0.5 * apart)
        return covariance


def fitted(rows: Array, values: Array) -> TimeVaryingKernel:
    """The kernel under which the observations are most likely; ``values`` of mean 0 and variance 1."""
    import numpy as np
    from scipy.optimize import minimize
    from scipy.spatial.distance import cdist

    apart = np.abs(rows[:, :1] - rows[:, 0])
    squared = cdist(rows[:, 1:], rows[:, 1:], "sqeuclidean")
    found = minimize(
        _unlikelihood,
        np.array(START),
        args=(apart, squared, values),
        jac=True,
        bounds=BOUNDS,
        method="L-BFGS-B",
        options={"maxiter": 40},
    )
    variance, length, noise = (math.exp(one) for one in found.x[:3])
    return TimeVaryingKernel(variance, (length,), noise, float(found.x[3]))


def _unlikelihood(theta: Array, apart: Array, squared: Array, values: Array) -> tuple[float, Array]:
    """The negative logarithm of the marginal likelihood, but for a constant, and its gradient (equation 5.9)."""
    import numpy as np
    from scipy.linalg import cho_factor, cho_solve

    variance, length, noise = (math.exp(one) for one in theta[:3])
    kept = 1.0 - float(theta[3])
    covariance = variance * np.exp(-0.5 * squared / length**2) * kept ** (0.5 * apart)
    ones = np.eye(len(values))
    factor = cho_factor(covariance + (noise + JITTER) * ones, lower=True)
    weights = cho_solve(factor, values)
    value = 0.5 * float(values @ weights) + float(np.log(np.diag(factor[0])).sum())
    inner = cho_solve(factor, ones) - np.outer(weights, weights)
    shared = inner * covariance
    of_length, of_forgetting = (shared * squared).sum() / length**2, -0.5 / kept * (shared * apart).sum()
    return value, 0.5 * np.array([shared.sum(), of_length, noise * np.trace(inner), of_forgetting])
