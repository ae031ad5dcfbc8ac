"""Module ``maggy.tensorboard``: the trial's log directory."""

from hopsml.core import refused_names
from hopsml.tensorboard import logdir

__path__: list[str] = []  # so that an import of a missing name reports what to use instead
__all__ = ["logdir"]


def __getattr__(name: str) -> object:
    raise refused_names.missing_attribute_error(__name__, name, __all__)
