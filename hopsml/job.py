"""Functions for a task of a job: the addresses at which another task's workers listen.

hopsml.job.addresses("server")      # ["node2:41001", "node5:41007"], once all workers are registered
"""

from hopsml.training.discovery import addresses

__all__ = ["addresses"]


def __dir__() -> list[str]:
    return list(__all__)
