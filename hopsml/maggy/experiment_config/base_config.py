"""An earlier place of ``hopsml.maggy.config.base_config``."""

from hopsml.maggy.config.base_config import BaseConfig

__all__ = ["BaseConfig"]
