"""An earlier place of ``hopsml.maggy.config.tf_distributed``."""

from hopsml.maggy.config.tf_distributed import TfDistributedConfig

__all__ = ["TfDistributedConfig"]
