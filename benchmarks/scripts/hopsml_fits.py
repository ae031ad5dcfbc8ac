"""A group of hopsml on this machine that trains by Keras ``fit`` when asked: SOCKET WORKERS WAY; see fits.py.

WAY names a group of ``hopsml.tensorflow.strategy()`` with the run's settings from ``WAYS``.
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
    """Serve steps until the server sends 0."""
    import tensorflow as tf  # noqa: F401 as in user code: what a function imports is preloaded

    fits.serve(socket, way, model.rank(), hopsml.tensorflow.strategy())


if __name__ == "__main__":
    socket, workers, way = sys.argv[1:]
    hopsml.experiment.submit(
        train, args={"socket": socket, "way": way}, num_workers=int(workers), progress=False, **WAYS[way]
    ).result()
