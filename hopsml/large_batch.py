"""Training with large batches: a recipe that was tuned at one batch size, at another in one line.

    recipe = hopsml.large_batch.Recipe(reference_batch_size=256, learning_rate=0.1, epochs=90, optimizer="lars")
    plan = recipe.at(8192, n_samples=len(x))
    print(plan)
    model.compile(plan.keras(), loss)

Importing this module imports no framework.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hopsml.errors import ArgumentTypeError
from hopsml.training.large_batch.batch_sizes import BatchSizeSchedule
from hopsml.training.large_batch.noise_scale import GradientNoiseScale
from hopsml.training.large_batch.normalizer import Normalizer
from hopsml.training.large_batch.recipe import BatchPlan, Recipe
from hopsml.training.large_batch.rules import smooth_labels
from hopsml.training.large_batch.schedules import Constant, Cosine, Polynomial, SlowStart, Steps

if TYPE_CHECKING:
    import torch

__all__ = [
    "BatchPlan",
    "BatchSizeSchedule",
    "Constant",
    "Cosine",
    "GradientNoiseScale",
    "Normalizer",
    "Polynomial",
    "Recipe",
    "SlowStart",
    "Steps",
    "parameter_groups",
    "reduce_statistics",
    "reduced_statistics",
    "smooth_labels",
    "synchronize",
    "zero_last_gamma",
]


def parameter_groups(module: torch.nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """A torch module's trained parameters in two groups: with ``weight_decay``, and biases and normalisations without.

    For any optimizer of torch; with LARS and LAMB the second group has no ratio of its own either.

    Raises ArgumentError for a module that has nothing to train.
    """
    from hopsml.training.torch import layerwise_optimizers

    return layerwise_optimizers.parameter_groups(module, weight_decay)


def reduce_statistics(model: Any) -> int:
    """Give every batch normalisation of a model the moving statistics of all workers; all call it, before validation.

    The mean is that of the means, the variance E[variance] + E[mean^2] - E[mean]^2, as each worker's batches are a part of
    the whole. Under ``hopsml.tensorflow.strategy()`` statistics are the same on all workers anyway.

    Args:
        model: of Keras 3, or a torch module.

    Returns how many normalisations there are. Raises ArgumentTypeError for another object.
    """
    found: int = _normalisations(model).reduce_statistics(model)
    return found


def reduced_statistics() -> Any:
    """A callback for Keras's ``fit`` that calls ``reduce_statistics`` before each validation, and behind the training."""
    from hopsml.training.tensorflow import normalisations

    return normalisations.ReducedStatistics()


def synchronize(model: Any) -> int:
    """Have every batch normalisation take mean and variance over the batches of all workers, on CPUs, too.

    Args:
        model: of Keras 3, where layers become ``synchronized=True``, before its first step; or a torch module, whose
            normalisations are replaced by ones with the same parameters: before it is prepared and has an optimizer.

    Returns how many were changed. Raises ArgumentTypeError for another object.
    """
    found: int = _normalisations(model).synchronize(model)
    return found


def zero_last_gamma(model: Any) -> list[str]:
    """Have every residual block begin as its shortcut: gamma of its last normalisation is 0 (arXiv 1706.02677, section 5.1).

    Args:
        model: a functional model of Keras 3, where an Add's longer branch counts; a torch module whose blocks name their
            shortcut ``downsample`` or ``shortcut`` and their normalisations ``bn3`` or ``bn2``; or a list of normalisations.

    Returns the names of what was changed. Raises ArgumentError where nothing is found.
    """
    given = list(model) if isinstance(model, (list, tuple)) else []
    if given:
        changed: list[str] = _normalisations(given[0]).zero(given)
        return changed
    found: list[str] = _normalisations(model).zero_last_gamma(model)
    return found


def _normalisations(model: Any) -> ModuleType:
    """The file of the framework that the model is of."""
    if "torch" in sys.modules and isinstance(model, sys.modules["torch"].nn.Module):
        from hopsml.training.torch import normalisations

        return normalisations
    if "keras" in sys.modules and isinstance(model, sys.modules["keras"].layers.Layer):
        from hopsml.training.tensorflow import normalisations as of_keras

        return of_keras
    raise ArgumentTypeError(f"a {type(model).__name__} was given; a model of Keras 3 or a torch module was expected")
