"""Module ``maggy.optimizer``: optimizer classes, and the base class for users' optimizers."""

from hopsml.maggy.optimizer import bayes
from hopsml.maggy.optimizer.base import AbstractOptimizer, Asha, GridSearch, RandomSearch, SingleRun
from hopsml.maggy.optimizer.bayes import GP, TPE

__all__ = ["GP", "TPE", "AbstractOptimizer", "Asha", "GridSearch", "RandomSearch", "SingleRun", "bayes"]
