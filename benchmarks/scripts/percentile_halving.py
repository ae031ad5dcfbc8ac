"""Ray Tune's rule of asynchronous successive halving as a ``Stopper``, so that both sides decide alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hopsml.search.contract import Config, Outcome, Stopper, Verdict


class PercentileHalving(Stopper):
    """Stopper that decides as ``ASHAScheduler`` of Ray 2.60 with one bracket.

    Rungs are at ``min_step`` times the powers of ``factor``. A trial is compared at its first report at or after a rung
    with the values that others had recorded there before it. Below their percentile 100 * (1 - 1 / factor),
    interpolated as in numpy, it is stopped; the first trial at a rung continues. If one report reaches several rungs,
    the highest counts. At ``max_step`` the trial is complete.
    """

    def __init__(self, max_step: int, min_step: int = 1, factor: int = 3) -> None:
        self.max_step = self._last = max_step
        self.percentile = 100 * (1 - 1 / factor)
        steps = [min_step]
        while steps[-1] * factor <= max_step:
            steps.append(steps[-1] * factor)
        self._steps = tuple(reversed(steps))
        self._clear()

    def _clear(self) -> None:
        self._recorded: dict[int, dict[int, float]] = {step: {} for step in self._steps}
        self._stopped: set[int] = set()

    def begin(self, number: int, config: Config) -> None:
        """Do nothing, as nothing is known of the trial yet."""

    def report(self, number: int, step: int, score: float) -> Verdict:
        """Return the verdict on a report; a stopped trial stays stopped, as it may have made a further step."""
        if number not in self._stopped and (step >= self._last or not self._goes_on(number, step, score)):
            self._stopped.add(number)
        return Verdict.STOP if number in self._stopped else Verdict.CONTINUE

    def _goes_on(self, number: int, step: int, score: float) -> bool:
        import numpy as np

        for rung, recorded in self._recorded.items():
            if step >= rung and number not in recorded:
                cutoff = np.percentile(list(recorded.values()), self.percentile) if recorded else None
                recorded[number] = score
                return cutoff is None or bool(score >= cutoff)
        return True

    def end(self, number: int, outcome: Outcome) -> None:
        """Do nothing: the recorded values of an ended trial still count."""

    def state(self) -> dict[str, Any]:
        """Return the recorded values and the stopped trials."""
        rungs = [[step, sorted(recorded.items())] for step, recorded in self._recorded.items()]
        return {"rungs": rungs, "stopped": sorted(self._stopped)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that ``state`` returned."""
        self._clear()
        self._recorded = {step: {number: score for number, score in recorded} for step, recorded in state["rungs"]}
        self._stopped = set(state["stopped"])
