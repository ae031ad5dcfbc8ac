"""Module ``maggy.experiment_config``: an earlier name of ``config``, with the modules that it had."""

import sys

from hopsml.maggy import config
from hopsml.maggy.config import *  # noqa: F403 whatever it exports
from hopsml.maggy.config import __all__ as __all__

# So that ``from hopsml.maggy.experiment_config.lagom import LagomConfig`` returns the present module.
_OF_NOW = ("ablation", "base_config", "hyperparameter_optimization", "lagom", "tf_distributed", "torch_distributed")
sys.modules |= {f"{__name__}.{name}": getattr(config, name) for name in _OF_NOW}
sys.modules[f"{__name__}.optimization"] = config.hyperparameter_optimization
