"""Bayesian optimization with a Gaussian process: Snoek et al. 2012, NIPS 25.

Scores are passed to the model after a monotone transformation towards a normal distribution (Yeo and Johnson 2000,
Biometrika 87, as in Cowen-Rivers et al. 2022, "HEBO", JAIR 74). Running trials count as if they had the mean that the
model predicts for them (the kriging believer of Ginsbourger et al. 2010), so that concurrent requests return different
configurations.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from hopsml.search.algorithms.gaussian_process import (
    FeatureEncoder,
    Kernel,
    Posterior,
    fit_kernel,
    log_improvement,
    log_improvement_slope,
)
from hopsml.search.algorithms.history import History, Warmup
from hopsml.search.algorithms.random import generator, require_packages, seed_or_random
from hopsml.search.contract import Config, Outcome, Searcher, Suggestion, Wait
from hopsml.search.space.space import Searchspace, check_filled

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float64]]

CANDIDATES = 1024  # points evaluated before gradient ascent from the best ones
CLIMBED = 5  # number of points improved by gradient ascent
MODELLED_AT_MOST = 300  # number of trials in the model: half of them the best, half the newest
POWERS = (-2.0, 4.0, 61)  # first, last, number of powers
ALWAYS_FITTED = 50  # with more trials the kernel is fitted again after each increase by a tenth


class Gp(Searcher):
    """Bayesian optimization searcher: suggests the configuration with the greatest expected improvement.

    Args:
        space: search space.
        seed: seed of its random numbers; None: a random one.
        num_warmup_trials: number of trials that must have ended with a score before the model is used.
        random_fraction: fraction of all trials that are drawn without the model.

    Raises:
        ArgumentError: an invalid value, or a library is missing.
    """

    def __init__(
        self, space: Searchspace, seed: int | None = None, num_warmup_trials: int = 10, random_fraction: float = 0.0
    ) -> None:
        check_filled(space)
        require_packages("the Gaussian process", "scipy", "threadpoolctl")
        self.space, self.seed = space, seed_or_random(seed)
        self._warmup = Warmup(space, self.seed, num_warmup_trials, random_fraction)
        self._features = FeatureEncoder(space)
        self._history = History(space)
        self._kernel: Kernel | None = None
        self._fitted_with = 0  # number of trials with which the kernel was fitted

    def ask(self, number: int) -> Suggestion | Wait:
        """Return a configuration: of the warm-up, or the one that the model considers best."""
        scored = self._history.scored()
        config = self._warmup.config(number, len(scored))
        if config is None:
            with limit_to_one_thread():
                config = self._best(number, scored)
        self._history.ask(config)
        return Suggestion(config)

    def _best(self, number: int, scored: list[tuple[Config, float]]) -> Config:
        """Return the candidate with the greatest expected improvement."""
        import numpy as np

        kept = _kept(scored)
        points = np.array([self.space.transform(config) for config, _ in kept])
        values = _normal(np.array([score for _, score in kept]))
        rows = self._features.of(points)
        if self._kernel is None or self._is_stale(len(scored)):
            self._kernel, self._fitted_with = fit_kernel(rows, values), len(scored)
        posterior = Posterior(self._kernel, rows, values)
        best = float(values.max())
        if running := self._history.running():
            waiting = self._features.of(np.array([self.space.transform(config) for config in running]))
            believed, _ = posterior.at(waiting)
            posterior = Posterior(self._kernel, np.vstack([rows, waiting]), np.concatenate([values, believed]))
            best = max(best, float(believed.max()))
        tops = points[np.argsort(-values, kind="stable")[:CLIMBED]]
        return self.space.inverse_transform(self._climbed(posterior, best, self._candidates(number, tops)).tolist())

    def _is_stale(self, scored: int) -> bool:
        """Return True if the kernel must be fitted again, as more trials have a score now."""
        return scored >= (self._fitted_with + 1 if scored < ALWAYS_FITTED else 1.1 * self._fitted_with)

    def _candidates(self, number: int, tops: Array) -> Array:
        """Return points spread over the space, and points that differ from the best ones in a few coordinates."""
        import numpy as np
        from scipy.stats import qmc

        draw = generator(self.seed, 2, number)
        size = len(self.space)
        spread = qmc.Sobol(size, rng=draw).random(CANDIDATES)
        near = tops[draw.integers(len(tops), size=CANDIDATES // 2)]
        moved = draw.random(near.shape) < max(1.0 / size, 0.3)
        moved[np.arange(len(near)), draw.integers(size, size=len(near))] = True
        step = draw.normal(size=near.shape) * 10.0 ** draw.uniform(-3.0, -0.5, size=(len(near), 1))
        jump = draw.random(near.shape) < 0.2
        stepped = np.where(jump, draw.random(near.shape), near + step)
        return np.vstack([spread, np.clip(np.where(moved, stepped, near), 0.0, 1.0)])

    def _climbed(self, posterior: Posterior, best: float, candidates: Array) -> Array:
        """Return the best candidate, after gradient ascent of the first few along continuous parameters."""
        import numpy as np
        from scipy.optimize import minimize

        promises = log_improvement(*posterior.at(self._features.of(candidates)), best)
        order = np.argsort(-promises, kind="stable")[:CLIMBED]
        found = [(float(promises[place]), candidates[place]) for place in order]
        smooth = self._features.smooth
        if smooth:
            coordinates, features = [one for one, _ in smooth], [other for _, other in smooth]
            for place in order:
                row = self._features.of(candidates[place : place + 1])[0]

                def downhill(moved: Array, row: Array = row) -> tuple[float, Array]:
                    row[features] = moved
                    value, gradient = log_improvement_slope(posterior, row, best)
                    return -value, -gradient[features]

                result = minimize(
                    downhill,
                    candidates[place][coordinates],
                    jac=True,
                    bounds=[(0.0, 1.0)] * len(coordinates),
                    method="L-BFGS-B",
                    options={"maxiter": 50},
                )
                point = candidates[place].copy()
                point[coordinates] = result.x
                found.append((-float(result.fun), point))
        climbed: Array = max(found, key=lambda pair: pair[0] if math.isfinite(pair[0]) else -math.inf)[1]
        return climbed

    def tell(self, number: int, outcome: Outcome) -> None:
        """Record the outcome of an ended trial."""
        self._history.tell(number, outcome)

    def learn(self, config: Config, outcome: Outcome) -> None:
        """Record a trial of an earlier search, if its configuration is in the space."""
        self._history.learn(config, outcome)

    def state(self) -> dict[str, Any]:
        """Return trials, kernel, warm-up and seed as JSON values, for ``restore``."""
        kernel = self._kernel
        written = None if kernel is None else [kernel.variance, list(kernel.lengths), kernel.noise]
        return {
            "seed": self.seed,
            "warmup": self._warmup.state(),
            "kernel": written,
            "fitted_with": self._fitted_with,
            **self._history.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state()`` of another instance that was constructed with the same arguments."""
        self.seed = state["seed"]
        self._history.restore(state)
        self._warmup.restore(state["warmup"])
        kernel = state["kernel"]
        self._kernel = None if kernel is None else Kernel(kernel[0], tuple(kernel[1]), kernel[2])
        self._fitted_with = state["fitted_with"]


def limit_to_one_thread() -> AbstractContextManager[Any]:
    """Return a context manager that limits linear algebra to one thread in the whole process.

    With matrices this small, further threads mostly wait for each other.
    """
    limited: AbstractContextManager[Any] = _controller().limit(limits=1, user_api="blas")
    return limited


@functools.cache
def _controller() -> Any:
    import scipy.linalg  # noqa: F401 threadpoolctl finds only libraries that are loaded
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def _kept(scored: list[tuple[Config, float]]) -> list[tuple[Config, float]]:
    """Return at most MODELLED_AT_MOST trials in their order: half of them the newest, half the best others."""
    if len(scored) <= MODELLED_AT_MOST:
        return scored
    half = MODELLED_AT_MOST // 2
    newest = range(len(scored) - half, len(scored))
    best = sorted(range(len(scored) - half), key=lambda place: -scored[place][1])[:half]
    return [scored[place] for place in sorted([*best, *newest])]


def _normal(scores: Array) -> Array:
    """Return the scores with mean 0 and variance 1, as close to normal as a monotone power makes them."""
    import numpy as np

    largest = float(np.abs(scores).max())
    scaled = scores / largest if largest else scores  # the squares of very large numbers would not be finite
    spread = float(scaled.std())
    if spread <= 1e-12:
        return np.zeros_like(scores)
    values = yeo_johnson((scaled - scaled.mean()) / spread)
    normal: Array = (values - values.mean()) / values.std()
    return normal


def yeo_johnson(values: Array) -> Array:
    """Return the values after the power transformation of the greatest likelihood (Yeo and Johnson 2000).

    The power is chosen among POWERS.
    """
    import numpy as np

    size, sign = np.log1p(np.abs(values)), np.sign(values)
    powers = np.linspace(*POWERS)[:, None]
    exponent = np.where(sign >= 0, powers, 2.0 - powers)
    small = np.abs(exponent) < 1e-9
    moved = sign * np.where(small, size, np.expm1(exponent * size) / np.where(small, 1.0, exponent))
    likelihood = -0.5 * len(values) * np.log(moved.var(axis=1)) + (powers[:, 0] - 1.0) * (sign * size).sum()
    best: Array = moved[int(np.argmax(likelihood))]
    return best
