"""Training with large batches: a recipe that was tuned at one batch size, at another in one line.

    recipe = hopsml.large_batch.Recipe(reference_batch_size=256, learning_rate=0.1, epochs=90, optimizer="lars")
    plan = recipe.at(8192, n_samples=len(x))
    print(plan)
    model.compile(plan.keras(), loss)

Importing this module imports no framework.
"""

from hopsml.training.large_batch.normalizer import Normalizer
from hopsml.training.large_batch.recipe import BatchPlan, Recipe
from hopsml.training.large_batch.rules import smooth_labels
from hopsml.training.large_batch.schedules import Constant, Cosine, Polynomial, SlowStart, Steps

__all__ = [
    "BatchPlan",
    "Constant",
    "Cosine",
    "Normalizer",
    "Polynomial",
    "Recipe",
    "SlowStart",
    "Steps",
    "smooth_labels",
]
