"""Searches of the benchmark by hopsml; used by a session and by a job from nothing."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.scripts import search_workload as work


def sleeping(seconds: float) -> float:
    """Sleep for some seconds as the trial function of most searches."""
    time.sleep(seconds)
    return seconds


def numbered(number: int) -> float:
    """Sleep for ``SHORT_S`` seconds as a short trial."""
    time.sleep(work.SHORT_S)
    return float(number)


def stepwise(number: int, quality: float, step_s: float) -> float:
    """Report a learning curve step by step; a trial that a stopper can end."""
    import hopsml

    value = 0.0
    for step in range(1, work.MAX_STEP + 1):
        time.sleep(step_s)
        value = work.value_at(step, quality)
        hopsml.report(step=step, metric=value)
    return value


def distributed(number: int) -> float:
    """Sleep for a second; a trial of several workers."""
    time.sleep(1.0)
    return float(number)


def run(case: str, executors: int, trials: int = 0) -> dict[str, Any]:
    """Run one search and return its seconds from call to result, best value, trials and steps."""
    from benchmarks.scripts.percentile_halving import PercentileHalving
    from hopsml import experiment
    from hopsml.search.contract import Config, Outcome, Searcher, Suggestion, Wait

    class Listed(Searcher):
        """Searcher that suggests given configurations in their order."""

        def __init__(self, configs: list[Config]) -> None:
            self.configs, self.asked = configs, 0
            self.total = len(configs)

        def ask(self, number: int) -> Suggestion | Wait:
            self.asked = number + 1
            return Suggestion(self.configs[number]) if number < len(self.configs) else Wait.DONE

        def tell(self, number: int, outcome: Outcome) -> None:
            """Ignore the outcome, as the configurations are given."""

        def state(self) -> dict[str, Any]:
            return {"asked": self.asked}

        def restore(self, state: Any) -> None:
            self.asked = state["asked"]

    function: Any = sleeping
    configs: list[Config] = [{"seconds": seconds} for seconds in work.SIXTEEN]
    space: dict[str, Any] = {"seconds": ("DOUBLE", [0.0, 2.0])}
    options: dict[str, Any] = {}
    if case in ("short", "forked", "nested"):
        function = distributed if case == "nested" else numbered
        configs = [{"number": number} for number in range(trials)]
        space = {"number": ("INTEGER", [0, max(1, trials)])}
        options = {"isolation": "process"} if case == "forked" else {}
        options = {"workers_per_trial": 2} if case == "nested" else options
    elif case == "asha":
        function = stepwise
        configs = [{"number": number, **trial} for number, trial in enumerate(work.asha_trials())]
        space = {
            "number": ("INTEGER", [0, work.ASHA_TRIALS]),
            "quality": ("DOUBLE", [0.0, 1.0]),
            "step_s": ("DOUBLE", [0.0, 1.0]),
        }
        options = {"stopper": PercentileHalving(work.MAX_STEP, factor=work.FACTOR)}
    began = time.monotonic()
    result = experiment.search(
        function, space, searcher=Listed(configs), num_trials=len(configs), max_executors=executors, keep_warm=600,
        progress=False, preload=["numpy"], **options,
    )  # fmt: skip
    seconds = time.monotonic() - began
    steps = sum(row["step"] or 0 for row in result.rows)
    return {"seconds": seconds, "best": result.value, "trials": len(result.rows), "steps": steps}
