"""Division of Keras's losses by the group's size at the time of the step, if the group may change.

Keras divides a worker's loss by the number of workers. Under a strategy over hopsml's group that number is read when
the step runs, so a function that was traced for three workers is right for two.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from hopsml.training.tensorflow import collective_ops
from hopsml.training.tensorflow.import_hook import after_import

_installed = False


def install() -> None:
    """Make both Keras versions divide losses by the group's size at each step, as soon as they are imported."""
    global _installed
    if _installed:
        return
    _installed = True
    after_import("keras.src.losses.loss", _install_keras3)
    after_import("tf_keras.src.utils.losses_utils", _install_tf_keras)


def _install_keras3(module: ModuleType) -> None:
    """Patch the loss scaling of Keras 3."""
    module.scale_loss_for_distribution = _scaling(module.scale_loss_for_distribution, divide=True)  # type: ignore[attr-defined]
    module.unscale_loss_for_distribution = _scaling(module.unscale_loss_for_distribution, divide=False)  # type: ignore[attr-defined]


def _install_tf_keras(module: ModuleType) -> None:
    """Patch the loss scaling of tf_keras."""
    module.scale_loss_for_distribution = _scaling(module.scale_loss_for_distribution, divide=True)  # type: ignore[attr-defined]


def _scaling(original: Callable[[Any], Any], divide: bool) -> Callable[[Any], Any]:
    """Return a function that divides or multiplies a loss by the present number of workers."""

    def scale(value: Any) -> Any:
        import tensorflow as tf

        if not getattr(tf.distribute.get_strategy().extended, "spans_group", False):
            return original(value)
        workers = tf.cast(collective_ops.size(), value.dtype)
        return value / workers if divide else value * workers

    return scale
