"""Detection of layer state that differs between the workers of a group at the end of ``fit``.

A layer's ``add_weight(trainable=False)`` has ``aggregation="none"``: a step assigns a value computed from the
worker's own rows, and only the chief's value is saved.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from hopsml.cluster.worker.context import current
from hopsml.errors import CollectiveError
from hopsml.training.tensorflow.file_exchange import broadcast_bytes
from hopsml.training.tensorflow.groups import in_group


def install() -> None:
    """Patch ``fit`` of Keras 3 to compare the workers' state when training ends."""
    from keras.src.callbacks.callback_list import CallbackList

    original = CallbackList.on_train_end

    def on_train_end(self: Any, logs: Any = None) -> None:
        original(self, logs)
        strategy, context = getattr(self.model, "distribute_strategy", None), current()
        regroups = context is not None and context.spec.group.regroups  # a worker that joins may skip this fit
        if in_group(strategy) and not regroups:
            name_differing(self.model, strategy)

    CallbackList.on_train_end = on_train_end


def name_differing(model: Any, strategy: Any) -> list[str]:
    """Print a warning about variables that differ from the chief's, and return their paths; all workers call it."""
    digests = {one.path: _digest(one) for one in model.non_trainable_variables if _is_own(one)}
    if not digests:  # the same on all workers: no collective operation is needed
        return []
    import tensorflow as tf

    try:
        of_chief: dict[str, str] = json.loads(broadcast_bytes(strategy, json.dumps(digests).encode()))
    except (CollectiveError, tf.errors.UnavailableError):
        return []  # the chief's ``fit`` has failed, as on a full disk, and its function has ended
    differing = [path for path, digest in digests.items() if of_chief.get(path, digest) != digest]
    if differing:
        print(
            f"hopsml: layer state differs between this worker and the chief, and only the chief's is saved: "
            f"{', '.join(differing)}. Each worker has assigned values computed from its own rows; "
            'add_weight(..., aggregation="mean") averages them over the workers'
        )
    return differing


def _is_own(variable: Any) -> bool:
    """Return True for numeric variables that no strategy aggregates, but not for states of random numbers."""
    return getattr(variable, "aggregation", None) == "none" and "float" in str(variable.dtype)


def _digest(variable: Any) -> str:
    """Return a digest of a variable's value."""
    return hashlib.blake2b(variable.numpy().tobytes(), digest_size=16).hexdigest()
