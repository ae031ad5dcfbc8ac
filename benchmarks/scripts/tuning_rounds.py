"""A driver of hopsml that measures each candidate of tuning for sets of gradients: RESULT WORKERS ROUNDS SETS."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks import gradient_sets
from hopsml import experiment
from hopsml.training.tensorflow.distribution import tuning
from hopsml.tuning.choice import list_candidates

TURN_S = 0.3

if __name__ == "__main__":
    result, workers, rounds, sets = sys.argv[1:]
    found = {}
    for name in sets.split(","):
        gradients = [(shape, "float32") for shape in gradient_sets.shapes_of(name)]
        given = {"gradients": gradients, "candidates": list_candidates(), "rounds": int(rounds), "turn_s": TURN_S}
        run = experiment.collective_all_reduce(
            tuning.measure_candidates, args=given, num_workers=int(workers), preload=["tensorflow"], progress=False
        )
        found[name] = run.value
        print(f"{name} is measured", file=sys.stderr, flush=True)
    Path(result).write_text(json.dumps(found))
    experiment.shutdown()
