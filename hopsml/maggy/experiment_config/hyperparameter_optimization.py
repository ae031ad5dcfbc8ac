"""An earlier place of ``hopsml.maggy.config.hyperparameter_optimization``."""

from hopsml.maggy.config.hyperparameter_optimization import HyperparameterOptConfig, OptimizationConfig

__all__ = ["HyperparameterOptConfig", "OptimizationConfig"]
