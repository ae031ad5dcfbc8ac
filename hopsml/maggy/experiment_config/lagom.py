"""An earlier place of ``hopsml.maggy.config.lagom``."""

from hopsml.maggy.config.lagom import LagomConfig

__all__ = ["LagomConfig"]
