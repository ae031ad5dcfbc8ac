"""Maggy's call forms: existing code changes ``maggy`` in its imports to ``hopsml.maggy`` and runs as it stands.

    from hopsml.maggy import Searchspace, experiment
    from hopsml.maggy.config import HyperparameterOptConfig
    from hopsml.maggy.optimizer import RandomSearch
    from hopsml.maggy.ablation import AblationStudy
    from hopsml.maggy.callbacks import KerasEpochEnd

``experiment.lagom`` is a search on the same executors as any other; its run directory holds what Maggy's held.
"""

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
