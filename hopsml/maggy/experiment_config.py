"""Module ``maggy.experiment_config``: an earlier name of ``config``, with the modules that it had."""

import sys

from hopsml.maggy import config
from hopsml.maggy.config import *  # noqa: F403 whatever it exports
from hopsml.maggy.config import __all__ as __all__

# So that ``from hopsml.maggy.experiment_config.lagom import LagomConfig`` returns the present module.
sys.modules |= {f"{__name__}.{name}": config for name in (*config.OF_MAGGY, "optimization")}
