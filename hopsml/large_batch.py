"""Training with large batches: a recipe that was tuned at one batch size, at another in one line.

    recipe = hopsml.large_batch.Recipe(reference_batch_size=256, learning_rate=0.1, epochs=90, optimizer="lars")
    plan = recipe.at(8192, n_samples=len(x))
    print(plan)
    model.compile(plan.keras(), loss)

Importing this module imports no framework.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    "smooth_labels",
]


def parameter_groups(module: torch.nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """A torch module's trained parameters in two groups: with ``weight_decay``, and biases and normalisations without.

    For any optimizer of torch; with LARS and LAMB the second group has no ratio of its own either.

    Raises ArgumentError for a module that has nothing to train.
    """
    from hopsml.training.torch import layerwise_optimizers

    return layerwise_optimizers.parameter_groups(module, weight_decay)
