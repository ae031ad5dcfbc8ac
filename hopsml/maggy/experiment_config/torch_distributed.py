"""An earlier place of ``hopsml.maggy.config.torch_distributed``."""

from hopsml.maggy.config.torch_distributed import TorchDistributedConfig

__all__ = ["TorchDistributedConfig"]
