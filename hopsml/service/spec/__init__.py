"""Job files: reading and validation of ``job.yaml`` as ``JobSpec``, and its JSON schema.

job = spec.load("job.yaml")         # raises JobFileError with all mistakes of the file and their lines
spec.dump(job)                      # YAML again
spec.summary(job)                   # resources of a cluster that the job needs
"""

from hopsml.service.spec.job import JobSpec, Search, summary
from hopsml.service.spec.loading import dump, load, loads
from hopsml.service.spec.task import Task, WorkerResources

__all__ = ["JobSpec", "Search", "Task", "WorkerResources", "dump", "load", "loads", "summary"]
