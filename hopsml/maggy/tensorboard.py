"""``maggy.tensorboard``: the trial's own log directory."""

from __future__ import annotations

from hopsml.tensorboard import logdir

__all__ = ["logdir"]
