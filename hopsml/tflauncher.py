"""Oldest import path of ``experiment.launch``: ``tflauncher.launch(spark, train, args_dict)``."""

from hopsml.experiment import launch

__all__ = ["launch"]


def __dir__() -> list[str]:
    return list(__all__)
