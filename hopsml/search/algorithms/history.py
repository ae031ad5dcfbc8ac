"""Trials of a search and of earlier ones with their outcomes, the observations of model-based searchers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hopsml.search.contract import Config, End, Outcome
from hopsml.search.space.space import Searchspace


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
