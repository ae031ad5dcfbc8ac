"""Maggy's functions and classes: existing code imports ``hopsml.maggy`` instead of ``maggy``, and runs unchanged.

    from hopsml.maggy import Searchspace, experiment
    from hopsml.maggy.config import HyperparameterOptConfig
    from hopsml.maggy.optimizer import RandomSearch
    from hopsml.maggy.ablation import AblationStudy
    from hopsml.maggy.callbacks import KerasEpochEnd

``experiment.lagom`` is a search on the same executors as any other; its run directory has the files of Maggy's.
"""

from hopsml.core import refused_names
from hopsml.maggy import ablation, callbacks, config, experiment, experiment_config, optimizer, searchspace, tensorboard
from hopsml.maggy.trial import Trial
from hopsml.search.space.space import Searchspace

__all__ = [
    "Searchspace",
    "Trial",
    "ablation",
    "callbacks",
    "config",
    "experiment",
    "experiment_config",
    "optimizer",
    "searchspace",
    "tensorboard",
]


def __getattr__(name: str) -> object:
    raise refused_names.missing_attribute_error(__name__, name, __all__)


def __dir__() -> list[str]:
    return list(__all__)
