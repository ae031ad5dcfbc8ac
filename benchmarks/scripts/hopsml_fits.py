"""A group of hopsml on this machine that trains by Keras ``fit`` in turns: SOCKET WORKERS WAY; see fits.py.

The way is the name of a group of ``hopsml.tensorflow.strategy()``, chosen by the run's settings as they stand in ``WAYS``.
"""

from __future__ import annotations

import sys
from typing import Any

import hopsml
from benchmarks.scripts import fits, model

WAYS: dict[str, dict[str, Any]] = {
    "hopsml": {"implementation": "hopsml"},
    "hopsml-legacy": {"implementation": "hopsml", "environment": {"TF_USE_LEGACY_KERAS": "1"}},
    "hopsml-shared": {"implementation": "hopsml", "environment": {"HOPSML_CORES": "0"}},
}


def train(socket: str, way: str) -> None:
    """Serve until told to end."""
    import tensorflow as tf  # noqa: F401 as in user code: what a function imports is preloaded

    fits.serve(socket, way, model.rank(), hopsml.tensorflow.strategy())


if __name__ == "__main__":
    socket, workers, way = sys.argv[1:]
    hopsml.experiment.submit(
        train, args={"socket": socket, "way": way}, num_workers=int(workers), progress=False, **WAYS[way]
    ).result()
