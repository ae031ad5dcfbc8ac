"""Keras optimizer of a batch plan, and the plan's learning rate as a schedule of Keras."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import keras
import tensorflow as tf

from hopsml.errors import ArgumentError
from hopsml.training.large_batch.recipe import BatchPlan
from hopsml.training.tensorflow import layerwise_optimizers as layerwise

_SPACE = SimpleNamespace(cos=tf.cos, exp=tf.exp, minimum=tf.minimum, maximum=tf.maximum, where=tf.where)


@keras.saving.register_keras_serializable(package="hopsml")
class PlanSchedule(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    """Learning-rate schedule of a batch plan, by the number of updates."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.config = plan
        self.plan = BatchPlan.from_config(plan)

    def __call__(self, step: Any) -> Any:
        """Return the rate of the update ``step``, counted from 0, as float32; it is computed in float64."""
        epoch = tf.cast(step, tf.float64) / self.plan.steps_per_epoch
        return tf.cast(self.plan.learning_rate_at(epoch, _SPACE), tf.float32)

    def get_config(self) -> dict[str, Any]:
        """Return the configuration from which Keras builds the same schedule."""
        return {"plan": self.config}


def make(plan: BatchPlan) -> Any:
    """Return the optimizer of the plan; raise ArgumentError if Keras runs on another backend."""
    if keras.config.backend() != "tensorflow":
        raise ArgumentError(
            f"plan.keras() with Keras on {keras.config.backend()}: these optimizers are of TensorFlow's variables; set "
            "KERAS_BACKEND=tensorflow, or take plan.torch(module)"
        )
    recipe = plan.recipe
    rate, decay = PlanSchedule(plan.as_config()), recipe.weight_decay
    own: dict[str, Any] = {} if recipe.epsilon is None else {"epsilon": recipe.epsilon}
    beta1, beta2 = plan.betas
    absorbs = not recipe.momentum_correction
    if recipe.optimizer == "momentum":
        return layerwise.Momentum(rate, plan.base_momentum, decay, absorbs_rate=absorbs)
    if recipe.optimizer == "lars":
        return layerwise.LARS(rate, plan.base_momentum, decay, recipe.trust, absorbs_rate=absorbs, **own)
    if recipe.optimizer == "lamb":
        return layerwise.LAMB(rate, beta1, beta2, weight_decay=decay, **own)
    if recipe.optimizer == "adam":
        return keras.optimizers.Adam(rate, beta1, beta2, weight_decay=decay or None, **own)
    return layerwise.RMSpropWarmup(rate, plan.steps_per_epoch, plan.base_momentum, weight_decay=decay, **own)
