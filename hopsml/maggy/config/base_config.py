"""``BaseConfig``: a single run of the function."""

from __future__ import annotations

from dataclasses import dataclass

from hopsml.maggy.config.lagom import LagomConfig


@dataclass
class BaseConfig(LagomConfig):
    """A single run of the function on one executor, for ``lagom``. ``hb_interval`` has no effect."""

    name: str = "base"
    hb_interval: float = 1
    description: str = ""
