"""Class ``TorchDistributedConfig``: Maggy's configuration of a training by PyTorch, which ``lagom`` rejects."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

from hopsml.maggy.config.lagom import LagomConfig


@dataclass
class TorchDistributedConfig(LagomConfig):
    """Configuration of a training by PyTorch; ``lagom`` raises an error that names ``hopsml.experiment.torch``."""

    module: Any = None
    dataset: Any = None
    hparams: Any = None
    backend: str = "torch"
    mixed_precision: bool = False
    zero_lvl: int = 0
    deepspeed_config: Any = None
    name: str = "torchDist"
    hb_interval: float = 1
    description: str = ""
    _: KW_ONLY
    train_set: Any = None
    test_set: Any = None
