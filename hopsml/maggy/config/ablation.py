"""Class ``AblationConfig`` for ``lagom``: configuration of an ablation study."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hopsml.maggy.config.lagom import LagomConfig


@dataclass
class AblationConfig(LagomConfig):
    """Configuration of an ablation study; ``ablator``: "loco", leave one out. ``hb_interval`` has no effect."""

    ablation_study: Any
    ablator: str = "loco"
    direction: str = "max"
    name: str = "ablationStudy"
    description: str = ""
    hb_interval: float = 1
    model: Any = None
    dataset: Any = None
    optimization_key: str = "metric"
