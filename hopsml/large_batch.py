"""Training with large batches: transfer of a recipe that was tuned at one batch size to another one.

    recipe = hopsml.large_batch.Recipe(reference_batch_size=256, learning_rate=0.1, epochs=90, optimizer="lars")
    plan = recipe.at(8192, n_samples=len(x))
    print(plan)
    model.compile(plan.keras(), loss)

Importing this module imports no framework.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hopsml.errors import ArgumentTypeError
from hopsml.training.large_batch import statistics
from hopsml.training.large_batch.recipe import BatchPlan, Normalizer, Recipe
from hopsml.training.large_batch.rules import smooth_labels
from hopsml.training.large_batch.schedules import (
    BatchSizeSchedule,
    Constant,
    Cosine,
    GradientNoiseScale,
    Polynomial,
    SlowStart,
    Steps,
)

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
    "recompute_statistics",
    "recomputed_statistics",
    "reduce_statistics",
    "reduced_statistics",
    "smooth_labels",
    "synchronize",
    "zero_last_gamma",
]


def parameter_groups(module: torch.nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return a torch module's trained parameters in two groups, with and without weight decay.

    Biases and normalizations have none. The groups suit any optimizer of torch; with LARS and LAMB the second group
    also has no layerwise ratio.

    Raises:
        ArgumentError: the module has no parameters to train.
    """
    from hopsml.training.torch import layerwise_optimizers

    return layerwise_optimizers.parameter_groups(module, weight_decay)


def recompute_statistics(model: Any, batches: Iterable[Any], share: float = 1.0) -> int:
    """Set the statistics of all batch normalizations to those over training data, instead of moving averages.

    All workers call it, before validation, each with its own part of the training data. One forward pass over the
    batches computes mean and variance of each normalization's input, over all rows of all batches of all workers.
    During it normalizations use their batch, as in training; everything else, such as dropout, is in inference mode.
    Weights, optimizer and the momentum of the normalizations do not change. The result does not depend on how the
    batches are divided among workers; it depends on the rows of each batch if normalizations follow one another.

    Normalizations that are frozen (Keras: ``trainable=False``; torch: in evaluation mode while the module is in
    training) do not change, and those that are synchronized use the batch of their worker in this pass. In torch the
    variance is the unbiased one, as in its moving averages.

    Args:
        model: a Keras 3 model, or a torch module.
        batches: this worker's batches; of tuples and lists the first element is passed to the model. Workers may
            have different numbers of batches, except where a forward pass itself communicates (sharded weights).
        share: share of the batches to use, above 0 to 1; the first of each worker, rounded up.

    Returns:
        The number of changed batch normalizations.

    Raises:
        ArgumentError: ``share`` is out of range, the number of batches is needed and unknown, or no worker has rows.
        ArgumentTypeError: another object was given.
    """
    framework = _normalisations(model)
    found: int = framework.recompute_statistics(model, statistics.first_batches(batches, share))
    return found


def recomputed_statistics(batches: Iterable[Any] | Callable[[], Iterable[Any]], share: float = 1.0) -> Any:
    """Return a callback for Keras's ``fit`` that recomputes the statistics of batch normalizations.

    It calls ``recompute_statistics`` before each validation and after the training.

    Args:
        batches: this worker's batches, which can be iterated over several times, or a function that returns them.
        share: share of the batches to use.
    """
    from hopsml.training.tensorflow.keras import normalisations

    return normalisations.RecomputedStatistics(batches, share)


def reduce_statistics(model: Any) -> int:
    """Set the moving statistics of all batch normalizations to those of all workers.

    All workers call it, before validation. The mean is the mean of the means, the variance E[variance] + E[mean^2] -
    E[mean]^2, as each worker's batches are a part of the whole. Under ``hopsml.tensorflow.strategy()`` the statistics
    are the same on all workers anyway.

    Args:
        model: a Keras 3 model, or a torch module.

    Returns:
        The number of batch normalizations.

    Raises:
        ArgumentTypeError: another object was given.
    """
    found: int = _normalisations(model).reduce_statistics(model)
    return found


def reduced_statistics() -> Any:
    """Return a callback for Keras's ``fit`` that synchronizes the moving statistics of batch normalizations.

    It calls ``reduce_statistics`` before each validation and after the training.
    """
    from hopsml.training.tensorflow.keras import normalisations

    return normalisations.ReducedStatistics()


def synchronize(model: Any) -> int:
    """Make every batch normalization use mean and variance over the batches of all workers, also on CPUs.

    Args:
        model: a Keras 3 model, whose layers become ``synchronized=True``, before its first step; or a torch module,
            whose normalizations are replaced by ones with the same parameters, before it is prepared and has an
            optimizer.

    Returns:
        The number of changed normalizations.

    Raises:
        ArgumentTypeError: another object was given.
    """
    found: int = _normalisations(model).synchronize(model)
    return found


def zero_last_gamma(model: Any) -> list[str]:
    """Set gamma of each residual block's last normalization to 0, so that the block starts as its shortcut.

    The method is that of arXiv 1706.02677, section 5.1.

    Args:
        model: a functional Keras 3 model, where the longer branch of an Add is used; a torch module whose blocks name
            their shortcut ``downsample`` or ``shortcut`` and their normalizations ``bn3`` or ``bn2``; or a list of
            normalizations.

    Returns:
        The names of the changed normalizations.

    Raises:
        ArgumentError: no such normalization is found.
    """
    given = list(model) if isinstance(model, (list, tuple)) else []
    if given:
        changed: list[str] = _normalisations(given[0]).set_gammas_to_zero(given)
        return changed
    found: list[str] = _normalisations(model).zero_last_gamma(model)
    return found


def _normalisations(model: Any) -> ModuleType:
    """Return the module with the functions for the model's framework."""
    if "torch" in sys.modules and isinstance(model, sys.modules["torch"].nn.Module):
        from hopsml.training.torch import normalisations

        return normalisations
    if "keras" in sys.modules and isinstance(model, sys.modules["keras"].layers.Layer):
        from hopsml.training.tensorflow.keras import normalisations as of_keras

        return of_keras
    raise ArgumentTypeError(
        f"a {type(model).__name__} is neither a model of Keras 3 nor a torch module; pass one of these"
    )


def __dir__() -> list[str]:
    return list(__all__)
