"""Parts of model-based searchers: past trials with their outcomes, and configurations that come from no model.

The latter are evenly spread points at the begin, and later a share of random ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hopsml.errors import ArgumentError
from hopsml.search.algorithms.random import RandomSearcher, generator
from hopsml.search.contract import Config, End, Outcome, Suggestion
from hopsml.search.space.space import Searchspace


class Warmup:
    """Configurations without a model: Sobol's sequence until ``trials`` have a score, then a random ``fraction``.

    Raises ArgumentError unless these are an integer of 1 or more and a fraction.
    """

    def __init__(self, space: Searchspace, seed: int, trials: int, fraction: float) -> None:
        if isinstance(trials, bool) or not isinstance(trials, int) or trials < 1:
            raise ArgumentError(f"num_warmup_trials={trials!r}: it must be 1 or more")
        if not 0 <= fraction <= 1:
            raise ArgumentError(f"random_fraction={fraction!r}: it must be a fraction from 0 to 1")
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


@dataclass(frozen=True)
class PastTrial:
    """Configuration that was tried with its outcome, which is None while it runs."""

    config: Config
    outcome: Outcome | None = None


class History:
    """Trials by number, and trials of earlier searches; the order in which they ended is not stored."""

    def __init__(self, space: Searchspace) -> None:
        self.space = space
        self.learned: list[PastTrial] = []
        self.asked: list[PastTrial] = []

    def ask(self, config: Config) -> None:
        """Add a running trial with this configuration; its number is the count of those before."""
        self.asked.append(PastTrial(config))

    def tell(self, number: int, outcome: Outcome) -> None:
        """Set the outcome of a trial that has ended."""
        self.asked[number] = PastTrial(self.asked[number].config, outcome)

    def learn(self, config: Config, outcome: Outcome) -> bool:
        """Add a trial of an earlier search.

        Returns:
            False, and nothing is added, if its configuration is not in the space.
        """
        if not self.space.contains(config):
            return False
        self.learned.append(PastTrial(config, outcome))
        return True

    @property
    def trials(self) -> list[PastTrial]:
        """All trials, those of earlier searches first."""
        return self.learned + self.asked

    def scored(self) -> list[tuple[Config, float]]:
        """Return (configuration, score) of every trial that has ended with a score."""
        ended = [(trial.config, trial.outcome) for trial in self.trials if trial.outcome is not None]
        return [(config, outcome.score) for config, outcome in ended if outcome.score is not None]

    def running(self) -> list[Config]:
        """Return the configurations of the trials that have not ended."""
        return [trial.config for trial in self.asked if trial.outcome is None]

    def state(self) -> dict[str, Any]:
        """Return all trials as JSON values, for ``restore``."""
        return {
            "learned": [self._written(trial) for trial in self.learned],
            "asked": [self._written(t) for t in self.asked],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Replace all trials by those of another history's ``state()``."""
        self.learned = [self._read(written) for written in state["learned"]]
        self.asked = [self._read(written) for written in state["asked"]]

    def _written(self, trial: PastTrial) -> list[Any]:
        encoded = self.space.encode(trial.config)
        if trial.outcome is None:
            return [encoded]
        return [encoded, trial.outcome.end.value, trial.outcome.score, trial.outcome.step]

    def _read(self, written: list[Any]) -> PastTrial:
        config = self.space.decode(written[0])
        return PastTrial(config, Outcome(End(written[1]), *written[2:]) if len(written) > 1 else None)
