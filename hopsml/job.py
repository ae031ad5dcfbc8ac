"""Inside a task of a job: where the workers of another task listen.

hopsml.job.addresses("server")      # ["node2:41001", "node5:41007"], as soon as all of them are there
"""

from hopsml.training.discovery.lookup import addresses

__all__ = ["addresses"]
