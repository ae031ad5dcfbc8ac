"""``maggy.experiment_config``: the later name of ``config``."""

from __future__ import annotations

from hopsml.maggy.config import (
    AblationConfig,
    HyperparameterOptConfig,
    OptimizationConfig,
    TfDistributedConfig,
    TorchDistributedConfig,
)

__all__ = [
    "AblationConfig",
    "HyperparameterOptConfig",
    "OptimizationConfig",
    "TfDistributedConfig",
    "TorchDistributedConfig",
]
