"""Bayesian optimization with a Gaussian process: Snoek et al. 2012, NIPS 25.

The model sees scores after a monotone transformation towards a normal distribution (Yeo and Johnson 2000, Biometrika 87, as
in Cowen-Rivers et al. 2022, "HEBO", JAIR 74). Trials that are running count as if they had the mean that the model expects
of them (the kriging believer of Ginsbourger et al. 2010), so that agents that ask at once get different answers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hopsml.search.contract import Config, Outcome, Searcher, Suggestion, Wait
from hopsml.search.features import Features
from hopsml.search.gaussian_process import Kernel, Posterior, fitted, log_improvement, log_improvement_slope
from hopsml.search.history import History
from hopsml.search.random import RandomSearch
from hopsml.search.seeded import generator, seed_of
from hopsml.search.space import Searchspace, check_filled
from hopsml.search.tpe import check_warmup

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float64]]

CANDIDATES = 1024  # places looked at, before the best of them are moved uphill
CLIMBED = 5
MODELLED_AT_MOST = 300  # trials: half of them the best, half the newest
ALWAYS_FITTED = 50  # with more trials the kernel is fitted anew after every tenth more


class Gp(Searcher):
    """``num_warmup_trials`` must have ended with a score before the model is asked; ``random_fraction`` of all are drawn
    without it. Raises ArgumentError for others.
    """

    def __init__(
        self, space: Searchspace, seed: int | None = None, num_warmup_trials: int = 10, random_fraction: float = 0.0
    ) -> None:
        check_filled(space)
        check_warmup(num_warmup_trials, random_fraction)
        self.space, self.seed = space, seed_of(seed)
        self.warmup, self.random_fraction = num_warmup_trials, random_fraction
        self._features = Features(space)
        self._begin()

    def _begin(self) -> None:
        self._history = History(self.space)
        self._first = RandomSearch(self.space, self.seed, sobol=True)
        self._kernel: Kernel | None = None
        self._fitted_with = 0  # trials

    def ask(self, number: int) -> Suggestion | Wait:
        scored = self._history.scored()
        drawn = self.random_fraction and generator(self.seed, 0, number).random() < self.random_fraction
        config = None
        if len(scored) >= self.warmup and not drawn:
            config = self._best(number, scored)
        elif isinstance(first := self._first.ask(number), Suggestion):
            config = first.config
        if config is None:  # everything was tried before
            config = self.space.inverse_transform(generator(self.seed, 1, number).random(len(self.space)).tolist())
        self._history.ask(config)
        return Suggestion(config)

    def _best(self, number: int, scored: list[tuple[Config, float]]) -> Config:
        """Where the model expects the greatest improvement."""
        import numpy as np

        kept = _kept(scored)
        points = np.array([self.space.transform(config) for config, _ in kept])
        values = _normal(np.array([score for _, score in kept]))
        rows = self._features.of(points)
        if self._kernel is None or len(scored) < ALWAYS_FITTED or len(scored) >= 1.1 * self._fitted_with:
            self._kernel, self._fitted_with = fitted(rows, values), len(scored)
        posterior = Posterior(self._kernel, rows, values)
        best = float(values.max())
        if running := self._history.running():
            waiting = self._features.of(np.array([self.space.transform(config) for config in running]))
            believed, _ = posterior.at(waiting)
            posterior = Posterior(self._kernel, np.vstack([rows, waiting]), np.concatenate([values, believed]))
            best = max(best, float(believed.max()))
        tops = points[np.argsort(-values, kind="stable")[:CLIMBED]]
        return self.space.inverse_transform(self._climbed(posterior, best, self._candidates(number, tops)).tolist())

    def _candidates(self, number: int, tops: Array) -> Array:
        """Places spread over the space, and places near the best ones of which a few coordinates differ."""
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
        """The best of the candidates, after the first few have been moved uphill along what is continuous."""
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
        self._history.tell(number, outcome)

    def learn(self, config: Config, outcome: Outcome) -> None:
        self._history.learn(config, outcome)

    def state(self) -> dict[str, Any]:
        kernel = self._kernel
        written = None if kernel is None else [kernel.variance, list(kernel.lengths), kernel.noise]
        return {
            "seed": self.seed,
            "first": self._first.state(),
            "kernel": written,
            "fitted_with": self._fitted_with,
            **self._history.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.seed = state["seed"]
        self._begin()
        self._history.restore(state)
        self._first.restore(state["first"])
        if state["kernel"] is not None:
            variance, lengths, noise = state["kernel"]
            self._kernel = Kernel(variance, tuple(lengths), noise)
        self._fitted_with = state["fitted_with"]


def _kept(scored: list[tuple[Config, float]]) -> list[tuple[Config, float]]:
    """At most MODELLED_AT_MOST, in their order."""
    if len(scored) <= MODELLED_AT_MOST:
        return scored
    half = MODELLED_AT_MOST // 2
    newest = range(len(scored) - half, len(scored))
    best = sorted(range(len(scored) - half), key=lambda place: -scored[place][1])[:half]
    return [scored[place] for place in sorted([*best, *newest])]


def _normal(scores: Array) -> Array:
    """The scores, transformed to mean 0 and variance 1 and as near to a normal distribution as a monotone power can."""
    import numpy as np
    from scipy import stats

    largest = float(np.abs(scores).max())
    scaled = scores / largest if largest else scores  # the squares of very large numbers would not be finite
    spread = float(scaled.std())
    if spread <= 1e-12:
        return np.zeros_like(scores)
    centred = (scaled - scaled.mean()) / spread
    with np.errstate(all="ignore"):
        transformed, _ = stats.yeojohnson(centred)
    usable = bool(np.isfinite(transformed).all()) and transformed.std() > 1e-6
    values: Array = transformed if usable else centred
    normal: Array = (values - values.mean()) / values.std()
    return normal
