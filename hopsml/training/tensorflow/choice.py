"""Choice of the collectives for ``hopsml.tensorflow.strategy()`` if none are requested; the same on all workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from hopsml.cluster.worker.context import WorkerContext
from hopsml.errors import HopsmlError

Implementation = Literal["auto", "tensorflow", "ring", "nccl", "hopsml"]
LOST = "steps take about twice as long"


class Chosen(NamedTuple):
    """Chosen collectives and the reason, worded to follow "because"; it is empty outside of a run."""

    implementation: Implementation
    why: str


def choose(
    context: WorkerContext | None, asked: Implementation, given: Sequence[str], gradients: Sequence[str] = ()
) -> Chosen:
    """Return the collectives for this worker; imports TensorFlow if the choice depends on its devices.

    Args:
        context: context of the worker; None outside of a run.
        asked: the strategy's argument.
        given: names of the strategy's arguments that are settings of TensorFlow's collectives.
        gradients: names of those that are settings of hopsml's collective; only one of the two is given.
    """
    if asked != "auto":
        return Chosen(asked, "strategy() names them")
    if given:
        return Chosen("tensorflow", f"strategy() was given {' and '.join(given)}")
    if gradients:
        return Chosen("hopsml", f"strategy() was given {' and '.join(gradients)}")
    if context is None:
        return Chosen("tensorflow", "")
    run = context.spec.communication
    if run.implementation != "auto":
        return Chosen(run.implementation, "the run names them")
    if run.of_tensorflow:
        return Chosen("tensorflow", f"the run was given {' and '.join(run.of_tensorflow)}")
    if context.spec.honour_environment:
        return Chosen("tensorflow", "honour_environment=True keeps a TF_CONFIG")
    if context.collective is None:
        return Chosen("tensorflow", f"the {context.role} does not train in hopsml's collective")
    if context.world_size == 1:
        return Chosen("tensorflow", "there is one worker")
    if run.gradients.given:
        return Chosen("hopsml", f"the run was given {' and '.join(run.gradients.given)}")
    if run.encryption:
        return Chosen("hopsml", "it encrypts")
    return _by_devices()


def _by_devices() -> Chosen:
    """Choose hopsml's collectives for workers without GPUs, if its library for TensorFlow is present."""
    import tensorflow as tf

    if tf.config.get_visible_devices("GPU"):
        return Chosen("tensorflow", "the workers have GPUs")
    from hopsml.collective import library
    from hopsml.training.tensorflow import collective_ops

    try:
        library.load()
        collective_ops.load()
    except (HopsmlError, tf.errors.OpError) as error:
        print(f"hopsml: gradients are reduced by TensorFlow's collectives, not by hopsml's: {LOST}. {error}")
        return Chosen("tensorflow", f"hopsml's library for TensorFlow {tf.__version__} is missing")
    return Chosen("hopsml", "the workers have no GPUs")
