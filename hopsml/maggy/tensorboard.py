"""Module ``maggy.tensorboard``: the trial's log directory."""

from hopsml.tensorboard import logdir

__all__ = ["logdir"]
