"""Population based bandits: population based training that chooses numbers by a Gaussian process.

Parker-Holder et al. 2020, "Provably efficient online hyperparameter optimization with population-based bandits",
NeurIPS 33, algorithm 1. Numbers are not perturbed at random: a Gaussian process of the gain of an interval, over time
and hyper-parameters, gives the point where the upper confidence bound of the next gain is highest. Categories, for
which the paper has no model, change as in population based training.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hopsml.search.algorithms.gaussian_process import Kernel, Posterior
from hopsml.search.algorithms.pbt import Individual, PopulationBased, perturbed
from hopsml.search.contract import Config
from hopsml.search.space.parameter import CATEGORICAL, Parameter

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float64]]

MODELLED_AT_MOST = 64  # number of the newest intervals in the model
LEAST = 4  # intervals that a model needs
CANDIDATES = 256  # points spread over the space; half as many more near the source
C1, C2 = 0.2, 0.4  # constants of the confidence bound, as in the experiments of the paper
# Grid of the kernel: length scales in the cube, noise as a share of the variance, rate of change with time.
LENGTHS = (0.1, 0.2, 0.4, 0.8, 1.6)
NOISES = (0.003, 0.03, 0.3)
FORGETTINGS = (0.0, 0.05, 0.15, 0.4)
VARIANCES = (0.01, 100.0)  # bounds of the signal variance


class PB2(PopulationBased):
    """Population based training that chooses new hyper-parameters by a time-varying Gaussian process.

    The arguments are those of ``PopulationBased``; ``resample_probability`` and ``factors`` are used until there is a
    model, and ``resample_probability`` for categories always.
    """

    def _clear(self) -> None:
        super()._clear()
        self._gains: list[tuple[int, list[float], float]] = []  # (interval, place, gain in score for each step)

    def _close_interval(self, member: Individual, step: int, score: float) -> None:
        if member.score is not None and step > member.step:
            place = self.space.transform(member.config)
            self._gains.append((step // self.interval, place, (score - member.score) / (step - member.step)))
            del self._gains[:-MODELLED_AT_MOST]
        super()._close_interval(member, step, score)

    def _explore(self, number: int, source: Individual, draw: np.random.Generator) -> Config:
        config = perturbed(self.space, source.config, draw, self.resample, self.factors)
        columns = [place for place, found in enumerate(self.space.parameters.values()) if found.kind != CATEGORICAL]
        if len(self._gains) < LEAST or not columns:
            return config
        names = list(self.space.parameters)
        point = self._best(number, source, columns, draw)
        chosen = {names[column]: float(unit) for column, unit in zip(columns, point, strict=True)}

        def choose(found: Parameter) -> Any:
            if found.name in chosen:
                return found.at(chosen[found.name])
            # A category is unchanged or drawn again; one that becomes active by another's change is drawn.
            return config[found.name] if found.name in config else found.at(float(draw.random()))

        return self.space.build(choose)

    def _best(self, number: int, source: Individual, columns: list[int], draw: np.random.Generator) -> Array:
        """Return the candidate with the highest upper confidence bound, given what other trials run at present."""
        import numpy as np

        now = max(member.intervals for member in self._members.values()) + 1
        rows = np.array([[interval, *place] for interval, place, _ in self._gains])[:, [0, *(c + 1 for c in columns)]]
        values = _standard(np.array([gain for _, _, gain in self._gains]))
        kernel = fitted(rows, values)
        trying = np.array(
            [[now, *self.space.transform(one.config)] for key, one in self._members.items() if key != number]
        )
        trying = trying[:, [0, *(column + 1 for column in columns)]]
        candidates = self._candidates(source, columns, draw)
        asked = np.column_stack([np.full(len(candidates), now), candidates])
        mean, _ = Posterior(kernel, rows, values).at(asked)
        # Running trials reduce the model's deviation, whatever their results will be.
        both = np.vstack([rows, trying])
        _, deviation = Posterior(kernel, both, np.zeros(len(both))).at(asked)
        weight = math.sqrt(C1 + max(math.log(C2 * len(rows)), 0.0))
        best: Array = candidates[int(np.argmax(mean + weight * deviation))]
        return best

    def _candidates(self, source: Individual, columns: list[int], draw: np.random.Generator) -> Array:
        """Return points spread over the space, and points around the source's configuration."""
        import numpy as np

        centre = np.array(self.space.transform(source.config))[columns]
        spread = draw.random((CANDIDATES, len(columns)))
        near = np.clip(centre + 0.1 * draw.normal(size=(CANDIDATES // 2, len(columns))), 0.0, 1.0)
        return np.vstack([spread, near])

    def state(self) -> dict[str, Any]:
        """Return the population and the recorded gains as JSON values, for ``restore``."""
        return {**super().state(), "gains": [list(gain) for gain in self._gains]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state()`` of another instance that was constructed with the same arguments."""
        super().restore(state)
        self._gains = [(interval, list(place), gain) for interval, place, gain in state["gains"]]


def _standard(gains: Array) -> Array:
    """Return ``gains`` scaled to mean 0 and variance 1; zeros where all are equal."""
    import numpy as np

    largest = float(np.abs(gains).max())
    scaled = gains / largest if largest else gains  # the squares of very large numbers would not be finite
    spread = float(scaled.std())
    return (scaled - scaled.mean()) / spread if spread > 1e-12 else np.zeros_like(gains)


@dataclass(frozen=True)
class TimeVaryingKernel(Kernel):
    """Kernel over points of the unit cube whose values change with time, the first column of a row.

    Bogunovic et al. 2016, "Time-varying Gaussian process bandit optimization", AISTATS: the squared exponential kernel
    times (1 - forgetting)^(|t - t'| / 2). ``forgetting``: 0, time does not matter, to 1, no memory at all.
    """

    forgetting: float = 0.0

    def between(self, rows: Array, others: Array) -> Array:
        """Return the covariance of each row with each of the others, without noise."""
        import numpy as np
        from scipy.spatial.distance import cdist

        apart = np.abs(rows[:, :1] - others[:, 0])
        squared = cdist(rows[:, 1:] / self.lengths[0], others[:, 1:] / self.lengths[0], "sqeuclidean")
        covariance: Array = self.variance * np.exp(-0.5 * squared) * (1.0 - self.forgetting) ** (0.5 * apart)
        return covariance


def fitted(rows: Array, values: Array) -> TimeVaryingKernel:
    """Return the kernel of a grid under which the observations are most likely.

    Its hyper-parameters are chosen by the marginal likelihood (Rasmussen and Williams 2006, equation 5.8), from a grid:
    the observations are few and noisy, and many small matrices at once cost less than a search along gradients. The
    best variance for given other hyper-parameters is known in closed form (the likelihood is concentrated on it).

    Args:
        rows: array (observations, 1 + parameters); time is the first column.
        values: observed values, of mean 0.
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
