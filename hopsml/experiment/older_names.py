"""What the predecessor's oldest releases had, and what there is instead."""

from __future__ import annotations

from typing import Any

from hopsml.errors import ArgumentTypeError
from hopsml.experiment import arguments, collective
from hopsml.experiment.result import Result

_OTHER_STRATEGY = "experiment.collective_all_reduce(train), whose function builds hopsml.tensorflow.strategy()"
INSTEAD = {
    "mirrored": f"{_OTHER_STRATEGY}; on one worker with several GPUs it may build tf.distribute.MirroredStrategy()",
    "parameter_server": _OTHER_STRATEGY,
    "allreduce": _OTHER_STRATEGY,
    "train_and_evaluate": f"{_OTHER_STRATEGY} and calls model.fit: Estimators have left TensorFlow",
}


def horovod(*positional: Any, **named: Any) -> Result:
    """``horovod(train, name="no-name", ...)``: the function on all workers, by ``collective_all_reduce``, without MPI.

    Raises ArgumentTypeError for the path of a notebook, as the predecessor had it: what horovod does in it is not there.
    """
    named = {("train_fn" if name == "notebook" else name): value for name, value in named.items()}
    rest = positional[1:] if positional and arguments.is_spark_session(positional[0]) else positional
    function = rest[0] if rest else named.get("train_fn", named.get("map_fun"))
    if isinstance(function, (str, bytes)):
        raise ArgumentTypeError(
            f"horovod({function!r:.80}): a notebook with horovod in it cannot be run; put its training into a function that "
            f"builds hopsml.tensorflow.strategy() instead of hvd.init(), and call experiment.collective_all_reduce(train)"
        )
    return collective.collective_all_reduce(*positional, **named)


def instead_of(name: str) -> AttributeError:
    """The error for a name that is not in ``experiment``."""
    if name in INSTEAD:
        return AttributeError(f"experiment.{name} is not there; use {INSTEAD[name]}")
    return AttributeError(f"module 'hopsml.experiment' has no attribute '{name}'")
