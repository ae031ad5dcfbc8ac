"""``maggy.tensorboard``: the trial's own log directory."""

from hopsml.tensorboard import logdir

__all__ = ["logdir"]
