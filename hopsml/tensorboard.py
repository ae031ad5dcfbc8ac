"""TensorBoard's log directory: ``logdir()`` inside the training function, ``hopsml tensorboard <run>`` outside."""

from __future__ import annotations

from typing import Any

from hopsml.cluster.context import current
from hopsml.errors import ArgumentError


def logdir() -> str:
    """The directory for event files, inside the training function; the same call on every rank.

    It is a local path that TensorFlow can write (TensorFlow has no ``hdfs://`` any more). Where the run directory is
    remote, what is written there is mirrored in the background, and the path ends in the remote URL, so that
    ``hdfs.mkdir(tensorboard.logdir() + "/model")`` and code that looks for ``hdfs://`` in it work as well.
    """
    context = current()
    if context is None:
        raise ArgumentError(
            "tensorboard.logdir() is only known inside a training function; outside, use result.logdir of the run"
        )
    return context.logdir or str(context.events_dir)


def __getattr__(name: str) -> Any:
    if name == "local_logdir_bool":
        context = current()
        return (
            context is not None and "/mirror/" not in logdir() and context.work_dir.parent in context.events_dir.parents
        )
    raise AttributeError(f"module 'hopsml.tensorboard' has no attribute '{name}'")
