"""A Gaussian process over places of the unit cube whose values change with time.

Bogunovic et al. 2016, "Time-varying Gaussian process bandit optimization", AISTATS: the squared exponential kernel times
(1 - forgetting)^(|t - t'| / 2). The first column of a row is the time. What is unknown of the kernel is chosen by the
marginal likelihood (Rasmussen and Williams 2006, equation 5.8), from a grid: the observations are few and noisy, and many
small matrices at once cost less than a search along gradients.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hopsml.search.algorithms.gaussian_process import Kernel

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float64]]

# What is tried: distances in the cube, the noise as a share of the variance, and how fast time makes things different.
LENGTHS = (0.1, 0.2, 0.4, 0.8, 1.6)
NOISES = (0.003, 0.03, 0.3)
FORGETTINGS = (0.0, 0.05, 0.15, 0.4)
VARIANCES = (0.01, 100.0)  # bounds


@dataclass(frozen=True)
class TimeVaryingKernel(Kernel):
    """A kernel over time (the first column) and place. ``forgetting``: 0, time does not matter, to 1, no memory at all."""

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
    """The kernel of the grid under which the observations are most likely; ``values`` of mean 0.

    The best variance for the rest of a kernel is known in closed form (the likelihood is concentrated on it).
    """
    import numpy as np
    from scipy.spatial.distance import cdist

    apart = np.abs(rows[:, :1] - rows[:, 0])
    squared = cdist(rows[:, 1:], rows[:, 1:], "sqeuclidean")
    grid = list(itertools.product(LENGTHS, NOISES, FORGETTINGS))
    lengths, noises, forgettings = (np.array(column)[:, None, None] for column in zip(*grid, strict=True))
    shapes = np.exp(-0.5 * squared / lengths**2) * (1.0 - forgettings) ** (0.5 * apart) + noises * np.eye(len(rows))
    factors = np.linalg.cholesky(shapes)
    whitened = np.linalg.solve(factors, np.broadcast_to(values[:, None], (len(grid), len(values), 1)))[..., 0]
    variances = np.clip((whitened**2).mean(axis=1), *VARIANCES)
    determinants = np.log(np.diagonal(factors, axis1=1, axis2=2)).sum(axis=1)
    unlikely = determinants + 0.5 * len(rows) * np.log(variances) + 0.5 * (whitened**2).sum(axis=1) / variances
    place = int(np.argmin(unlikely))
    length, noise, forgetting = grid[place]
    variance = float(variances[place])
    return TimeVaryingKernel(variance, (length,), noise * variance, forgetting)
