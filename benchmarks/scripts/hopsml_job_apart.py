"""The hopsml job with agents that do not use the driver's zygote: each imports its modules by itself."""

from __future__ import annotations

import sys

import hopsml
from benchmarks.scripts.hopsml_job import train
from hopsml.experiment import applications

if __name__ == "__main__":
    applications.agents_variables = lambda master, settings: None
    folder, workers, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    hopsml.experiment.collective_all_reduce(train, args={"folder": folder, "steps": steps}, num_workers=workers)
