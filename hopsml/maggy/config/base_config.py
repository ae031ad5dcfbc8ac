"""Class ``BaseConfig`` for ``lagom``: configuration of a single run of the function."""

from __future__ import annotations

from dataclasses import dataclass

from hopsml.maggy.config.lagom import LagomConfig


@dataclass
class BaseConfig(LagomConfig):
    """Configuration of a single run of the function on one executor. ``hb_interval`` has no effect."""

    name: str = "base"
    hb_interval: float = 1
    description: str = ""
