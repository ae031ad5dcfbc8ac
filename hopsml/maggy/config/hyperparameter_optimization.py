"""Class ``HyperparameterOptConfig`` for ``lagom``: configuration of a hyper-parameter search."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

from hopsml.errors import ArgumentError
from hopsml.maggy.config.lagom import LagomConfig
from hopsml.search.space.space import Searchspace


@dataclass
class HyperparameterOptConfig(LagomConfig):
    """Configuration of a hyper-parameter search for ``lagom``; ``hb_interval`` has no effect.

    ``model``, ``dataset`` (earlier ``train_set``, ``test_set``) are passed to a function that has such parameters.
    ``es_interval``: steps between two comparisons of a trial with the others.
    """

    num_trials: int
    optimizer: Any
    searchspace: Searchspace
    optimization_key: str = "metric"
    direction: str = "max"
    es_interval: int = 1
    es_min: int = 10
    es_policy: str = "median"
    name: str = "HPOptimization"
    description: str = ""
    hb_interval: float = 1
    model: Any = None
    dataset: Any = None
    _: KW_ONLY
    train_set: Any = None
    test_set: Any = None

    def __post_init__(self) -> None:
        if not isinstance(self.num_trials, int) or self.num_trials < 1:
            raise ArgumentError(f"num_trials={self.num_trials!r}: it must be a whole number, at least 1")


OptimizationConfig = HyperparameterOptConfig  # its first name
