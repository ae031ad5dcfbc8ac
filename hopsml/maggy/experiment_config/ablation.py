"""An earlier place of ``hopsml.maggy.config.ablation``."""

from hopsml.maggy.config.ablation import AblationConfig

__all__ = ["AblationConfig"]
