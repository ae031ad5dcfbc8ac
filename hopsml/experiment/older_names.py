"""What the predecessor's oldest releases had, and what there is instead."""

from __future__ import annotations

from collections.abc import Iterable

from hopsml import suggestions
from hopsml.experiment import plan
from hopsml.experiment.collective import ORDERS, build
from hopsml.experiment.options import RunOptions
from hopsml.experiment.result import Result
from hopsml.experiment.verbs import Verb

_OTHER_STRATEGY = "experiment.collective_all_reduce(train), whose function builds hopsml.tensorflow.strategy()"
INSTEAD = {
    "mirrored": f"{_OTHER_STRATEGY}; on one worker with several GPUs it may build tf.distribute.MirroredStrategy()",
    "parameter_server": _OTHER_STRATEGY,
    "allreduce": _OTHER_STRATEGY,
    "train_and_evaluate": f"{_OTHER_STRATEGY} and calls model.fit: Estimators have left TensorFlow",
}


@Verb(RunOptions, "horovod", orders=ORDERS, renamed={"notebook": "train_fn"})
def horovod(options: RunOptions) -> Result:
    """The function on all workers, by ``collective_all_reduce``, without MPI.

    Raises:
        ArgumentTypeError: for the path of a notebook, as the predecessor had it: what horovod does in it is not there;
            otherwise as ``collective_all_reduce``.
    """
    return plan.start(build(options)).result()


def instead_of(name: str, known: Iterable[str]) -> AttributeError:
    """The error for a name that is not in ``experiment``, which has those of ``known``."""
    if name in INSTEAD:
        return AttributeError(f"experiment.{name} is not there; use {INSTEAD[name]}")
    meant = suggestions.similar(name, [] if name.startswith("_") else known)
    hint = f"; did you mean {' or '.join(meant)}?" if meant else ""
    return AttributeError(f"module 'hopsml.experiment' has no attribute '{name}'{hint}")
