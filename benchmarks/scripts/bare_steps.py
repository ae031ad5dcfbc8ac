"""A worker of a group started by hand that serves steps: SOCKET WAY; ``bare-merged`` has hopsml's reduction."""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.scripts import model, turns


def strategy(way: str) -> Any:
    """Return TensorFlow's own strategy; no other part of hopsml is loaded, and no hook of hopsml is installed."""
    built = model.plain_strategy()
    if way == "bare-merged":
        from hopsml.training.tensorflow.distribution import merging

        merging.set_merging(built, merging.merge_scope_of_run(None), merging.scoped_allocator_of_run(None))
    return built


if __name__ == "__main__":
    path, way = sys.argv[1:]
    turns.serve(path, way, model.rank(), model.build(strategy(way)))
