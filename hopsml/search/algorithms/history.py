"""What a model learns from: the trials, their outcomes, and those that are still running."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hopsml.search.contract import Config, End, Outcome
from hopsml.search.space.space import Searchspace


@dataclass(frozen=True)
class PastTrial:
    """One trial; ``outcome`` None: it is running."""

    config: Config
    outcome: Outcome | None = None


class History:
    """Trials by number, and those learned from elsewhere, in their order. The order of the tells is not kept."""

    def __init__(self, space: Searchspace) -> None:
        self.space = space
        self.learned: list[PastTrial] = []
        self.asked: list[PastTrial] = []

    def ask(self, config: Config) -> None:
        """One more trial is running."""
        self.asked.append(PastTrial(config))

    def tell(self, number: int, outcome: Outcome) -> None:
        """It has ended."""
        self.asked[number] = PastTrial(self.asked[number].config, outcome)

    def learn(self, config: Config, outcome: Outcome) -> bool:
        """A trial from elsewhere; False, and nothing happens, where the space does not hold it."""
        if not self.space.contains(config):
            return False
        self.learned.append(PastTrial(config, outcome))
        return True

    @property
    def trials(self) -> list[PastTrial]:
        """All; those learned from elsewhere first."""
        return self.learned + self.asked

    def scored(self) -> list[tuple[Config, float]]:
        """Those that have a score."""
        ended = [(trial.config, trial.outcome) for trial in self.trials if trial.outcome is not None]
        return [(config, outcome.score) for config, outcome in ended if outcome.score is not None]

    def running(self) -> list[Config]:
        """Those that have not ended."""
        return [trial.config for trial in self.asked if trial.outcome is None]

    def state(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return {
            "learned": [self._written(trial) for trial in self.learned],
            "asked": [self._written(t) for t in self.asked],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """What ``state`` gave takes the place of what was there."""
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
