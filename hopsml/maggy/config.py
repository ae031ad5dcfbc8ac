"""``maggy.config``: what ``lagom(train_fn, config)`` takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hopsml.errors import ArgumentError
from hopsml.search.space import Searchspace


@dataclass
class HyperparameterOptConfig:
    """A search. ``model``, ``dataset`` (earlier ``train_set``, ``test_set``) reach a function that has such parameters."""

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
    train_set: Any = None
    test_set: Any = None

    def __post_init__(self) -> None:
        if not isinstance(self.num_trials, int) or self.num_trials < 1:
            raise ArgumentError(f"num_trials={self.num_trials!r}: it must be a whole number, at least 1")


OptimizationConfig = HyperparameterOptConfig  # its first name


@dataclass
class AblationConfig:
    """An ablation study."""

    ablation_study: Any
    ablator: str = "loco"
    direction: str = "max"
    name: str = "ablationStudy"
    description: str = ""
    hb_interval: float = 1
    model: Any = None
    dataset: Any = None
    optimization_key: str = "metric"


@dataclass
class TfDistributedConfig:
    """Distributed training by TensorFlow on all executors."""

    model: Any = None
    dataset: Any = None
    train_set: Any = None
    test_set: Any = None
    process_data: Any = None
    mixed_precision: bool = False
    name: str = "tfDist"
    hb_interval: float = 1
    description: str = ""
    hparams: Any = None


@dataclass
class TorchDistributedConfig:
    """Distributed training by PyTorch, which this project does not have yet; ``lagom`` says so."""

    module: Any = None
    dataset: Any = None
    train_set: Any = None
    test_set: Any = None
    hparams: Any = None
    backend: str = "torch"
    mixed_precision: bool = False
    zero_lvl: int = 0
    deepspeed_config: Any = None
    name: str = "torchDist"
    hb_interval: float = 1
    description: str = ""
