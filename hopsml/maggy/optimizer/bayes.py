"""``maggy.optimizer.bayes``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hopsml.maggy.optimizer.base import Named


class _Bayesian(Named):
    """``pruner`` "hyperband" gives the parameter ``budget`` to trials; ``interim_results`` is accepted and not used."""

    def __init__(
        self,
        num_warmup_trials: int = 15,
        random_fraction: float = 0.33,
        interim_results: bool = False,
        pruner: str | None = None,
        pruner_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(num_warmup_trials=num_warmup_trials, random_fraction=random_fraction)
        self.pruner, self.pruner_arguments = pruner, dict(pruner_kwargs or {})


class GP(_Bayesian):
    """A Gaussian process."""

    name = "gp"


class TPE(_Bayesian):
    """Tree-structured Parzen estimators."""

    name = "tpe"
