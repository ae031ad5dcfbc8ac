"""Module ``maggy.config``: configuration classes for ``lagom(train_fn, config)``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

from hopsml.errors import ArgumentError, RuleError
from hopsml.search.space.space import Searchspace

__all__ = [
    "AblationConfig",
    "BaseConfig",
    "HyperparameterOptConfig",
    "LagomConfig",
    "OptimizationConfig",
    "TfDistributedConfig",
    "TorchDistributedConfig",
]

# Maggy has one module for each class; its users' imports of them return this module.
OF_MAGGY = ("ablation", "base_config", "hyperparameter_optimization", "lagom", "tf_distributed", "torch_distributed")
sys.modules |= {f"{__name__}.{name}": sys.modules[__name__] for name in OF_MAGGY}


class LagomConfig:
    """Base class of the configurations that ``lagom(train_fn, config)`` accepts."""

    name: str
    description: str
    hb_interval: float

    def without_effect(self) -> list[str]:
        """Return a sentence for each field that was given and is ignored, shown when the experiment begins."""
        if self.hb_interval == 1:
            return []
        return [f"hb_interval={self.hb_interval!r} has no effect: what a trial reports arrives at once"]


@dataclass
class BaseConfig(LagomConfig):
    """Configuration of a single run of the function on one executor. ``hb_interval`` has no effect."""

    name: str = "base"
    hb_interval: float = 1
    description: str = ""


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
            raise RuleError(f"num_trials={self.num_trials!r}: it must be a whole number, at least 1")


OptimizationConfig = HyperparameterOptConfig  # its first name


@dataclass
class AblationConfig(LagomConfig):
    """Configuration of an ablation study; ``ablator``: "loco", leave one out. ``hb_interval`` has no effect."""

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
class TfDistributedConfig(LagomConfig):
    """Configuration of a distributed training by TensorFlow: one process on each executor, all with the same weights.

    Args:
        model: a class or function that creates the Keras model, or a list of them; not a model.
        dataset: a list of arguments for ``process_data``, or of arrays; earlier ``train_set`` and ``test_set``. A text
            is a path, of this machine or of the project.
        process_data: called in each worker, with ``dataset``, or with ``train_set`` and ``test_set``; its result
            replaces them. A ``train_set`` and ``test_set`` of arrays or of a ``tf.data.Dataset`` are passed on as they
            are, and it is not called. Each worker gets its own rows of both, in batches, if ``hparams`` has
            ``train_batch_size`` and ``test_batch_size``: rows in one step of all workers.
        mixed_precision: compute in 16 bits, bfloat16 without a GPU; variables stay in 32 bits.
        hparams: passed to the function.
    """

    model: Any = None
    dataset: Any = None
    process_data: Callable[..., Any] | None = None
    mixed_precision: bool = False
    name: str = "tfDist"
    hb_interval: float = 1
    description: str = ""
    hparams: dict[str, Any] | None = None
    _: KW_ONLY
    train_set: Any = None
    test_set: Any = None

    def __post_init__(self) -> None:
        for model in self.model if isinstance(self.model, (list, tuple)) else [self.model]:
            made = not isinstance(model, type) and hasattr(model, "trainable_variables")
            if made or not (model is None or callable(model)):
                raise ArgumentError(
                    f"model={model!r:.80}: pass the class, or a function that makes the model, as each worker makes its own"
                )
        if self.process_data is None:
            return
        if not callable(self.process_data):
            raise ArgumentError(f"process_data={self.process_data!r:.80}: it must be a function")
        if self.dataset is None and self.train_set is None and self.test_set is None:
            raise ArgumentError("process_data has no data; give dataset=[...], or train_set= and test_set=")


@dataclass
class TorchDistributedConfig(LagomConfig):
    """Configuration of a training by PyTorch; ``lagom`` raises an error that names ``hopsml.experiment.torch``."""

    module: Any = None
    dataset: Any = None
    hparams: Any = None
    backend: str = "torch"
    mixed_precision: bool = False
    zero_lvl: int = 0
    deepspeed_config: Any = None
    name: str = "torchDist"
    hb_interval: float = 1
    description: str = ""
    _: KW_ONLY
    train_set: Any = None
    test_set: Any = None
