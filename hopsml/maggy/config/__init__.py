"""Module ``maggy.config``: configuration classes for ``lagom(train_fn, config)``, one in each module."""

from hopsml.maggy.config.ablation import AblationConfig
from hopsml.maggy.config.base_config import BaseConfig
from hopsml.maggy.config.hyperparameter_optimization import HyperparameterOptConfig, OptimizationConfig
from hopsml.maggy.config.lagom import LagomConfig
from hopsml.maggy.config.tf_distributed import TfDistributedConfig
from hopsml.maggy.config.torch_distributed import TorchDistributedConfig

__all__ = [
    "AblationConfig",
    "BaseConfig",
    "HyperparameterOptConfig",
    "LagomConfig",
    "OptimizationConfig",
    "TfDistributedConfig",
    "TorchDistributedConfig",
]
