"""Module ``maggy.optimizer.bayes``: the Bayesian optimizers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hopsml.errors import ArgumentError
from hopsml.maggy.optimizer.base import Named


class _Bayesian(Named):
    """Base class of both; raises ArgumentError for ``interim_results``, Maggy's learning from running trials."""

    def __init__(
        self,
        num_warmup_trials: int = 15,
        random_fraction: float = 0.33,
        interim_results: bool = False,
        pruner: str | None = None,
        pruner_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        if interim_results:
            raise ArgumentError(
                "interim_results=True: models learn from trials that have ended; leave it out, or use pruner='hyperband', "
                "whose short trials end early"
            )
        super().__init__(pruner, pruner_kwargs, num_warmup_trials=num_warmup_trials, random_fraction=random_fraction)


class GP(_Bayesian):
    """Bayesian optimization with a Gaussian process."""

    name = "gp"


class TPE(_Bayesian):
    """Bayesian optimization with tree-structured Parzen estimators."""

    name = "tpe"
