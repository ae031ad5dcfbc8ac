"""A single run of the function."""

from __future__ import annotations

from dataclasses import dataclass

from hopsml.maggy.config.lagom import LagomConfig


@dataclass
class BaseConfig(LagomConfig):
    """The function runs once, on one executor."""

    name: str = "base"
    hb_interval: float = 1
    description: str = ""
