"""Jobs as files: ``job.yaml`` -> ``JobSpec``, checked; its JSON schema.

job = spec.load("job.yaml")         # JobFileError: everything that is wrong with it, with lines
spec.dump(job)                      # YAML again
spec.summary(job)                   # what it takes of a cluster
"""

from hopsml.service.spec.dumping import dump
from hopsml.service.spec.job import JobSpec
from hopsml.service.spec.loading import load, loads
from hopsml.service.spec.resources import WorkerResources
from hopsml.service.spec.search import Search
from hopsml.service.spec.sizes import summary
from hopsml.service.spec.task import Task

__all__ = ["JobSpec", "Search", "Task", "WorkerResources", "dump", "load", "loads", "summary"]
