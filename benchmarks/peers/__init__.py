"""The launchers that are measured, one file each; ``find`` gives one by its name."""

from __future__ import annotations

import importlib

from benchmarks.peers.base import Peer

NAMES = (
    "bare",
    "hopsml",
    "spark-tensorflow-distributor",
    "torch-distributor",
    "tensorflowonspark",
    "ray-train",
)
RECOVERING = ("ray-train-elastic", "torchrun")  # what of them goes on after the loss of a worker


def find(name: str) -> Peer:
    """The peer of this name. Raises ValueError for another one."""
    if name not in (*NAMES, *RECOVERING):
        raise ValueError(f"peer '{name}' is not known; there are: {', '.join((*NAMES, *RECOVERING))}")
    peer = importlib.import_module(f"benchmarks.peers.{name.replace('-', '_')}").PEER
    assert isinstance(peer, Peer)
    return peer
