"""``maggy.experiment_config``: an earlier name of ``config``, with the modules that it had."""

import sys

from hopsml.maggy.config import (
    AblationConfig,
    BaseConfig,
    HyperparameterOptConfig,
    LagomConfig,
    OptimizationConfig,
    TfDistributedConfig,
    TorchDistributedConfig,
    ablation,
    base_config,
    hyperparameter_optimization,
    lagom,
    tf_distributed,
    torch_distributed,
)

__all__ = [
    "AblationConfig",
    "BaseConfig",
    "HyperparameterOptConfig",
    "LagomConfig",
    "OptimizationConfig",
    "TfDistributedConfig",
    "TorchDistributedConfig",
]

# So that ``from hopsml.maggy.experiment_config.lagom import LagomConfig`` finds the module of now.
sys.modules |= {
    f"{__name__}.ablation": ablation,
    f"{__name__}.base_config": base_config,
    f"{__name__}.hyperparameter_optimization": hyperparameter_optimization,
    f"{__name__}.lagom": lagom,
    f"{__name__}.optimization": hyperparameter_optimization,
    f"{__name__}.tf_distributed": tf_distributed,
    f"{__name__}.torch_distributed": torch_distributed,
}
