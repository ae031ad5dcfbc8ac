"""An elastic training by hopsml on this machine, over the collectives named by its argument, until it is killed."""

from __future__ import annotations

import sys

import hopsml
from benchmarks.scripts import elastic_job

if __name__ == "__main__":
    folder, workers, implementation = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    hopsml.experiment.collective_all_reduce(
        elastic_job.train,
        args={"folder": folder},
        min_workers=workers,
        max_workers=workers,
        implementation=implementation,
        progress=False,
    )
