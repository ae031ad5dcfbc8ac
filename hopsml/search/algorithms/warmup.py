"""Configurations of model-based searchers that do not come from the model.

These are evenly spread points at the begin, and later a share of random ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hopsml.errors import ArgumentError
from hopsml.search.algorithms.random import RandomSearcher
from hopsml.search.algorithms.randomness import generator
from hopsml.search.contract import Config, Suggestion
from hopsml.search.space.space import Searchspace


class Warmup:
    """Configurations without a model: Sobol's sequence until ``trials`` have a score, then a random ``fraction``.

    Raises ArgumentError unless these are an integer of 1 or more and a fraction.
    """

    def __init__(self, space: Searchspace, seed: int, trials: int, fraction: float) -> None:
        if isinstance(trials, bool) or not isinstance(trials, int) or trials < 1:
            raise ArgumentError(f"num_warmup_trials={trials!r}: 1 or more was expected")
        if not 0 <= fraction <= 1:
            raise ArgumentError(f"random_fraction={fraction!r}: a fraction from 0 to 1 was expected")
        self.space, self.seed, self.trials, self.fraction = space, seed, trials, fraction
        self._spread = RandomSearcher(space, seed, sobol=True)

    def config(self, number: int, scored: int) -> Config | None:
        """Return the configuration of trial ``number``; None: the model must suggest it.

        Args:
            number: number of the trial.
            scored: number of trials that have ended with a score.
        """
        draw = generator(self.seed, 0, number)
        if scored < self.trials:
            spread = self._spread.ask(number)
            if isinstance(spread, Suggestion):
                return spread.config
        elif draw.random() >= self.fraction:
            return None
        return self.space.inverse_transform(draw.random(len(self.space)).tolist())

    def state(self) -> dict[str, Any]:
        """Return the position in the sequence and the seed, as JSON values."""
        return self._spread.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from another instance's ``state()``."""
        self._spread.restore(state)
        self.seed = self._spread.seed
