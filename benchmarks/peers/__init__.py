"""The launchers that are measured, one file each; ``find`` returns one by its name."""

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
VARIANTS = ("hopsml-apart", "spark-tensorflow-distributor-our-jvm")  # two of them with other settings
RECOVERING = ("ray-train-elastic", "torchrun")  # launchers that continue after the loss of a worker
OF_TORCH = ("torchft",)  # compared with hopsml's PyTorch only


def find(name: str) -> Peer:
    """Return the peer of this name.

    Raises:
        ValueError: no peer has this name.
    """
    known = (*NAMES, *VARIANTS, *RECOVERING, *OF_TORCH)
    if name not in known:
        raise ValueError(f"peer '{name}' is not known; there are: {', '.join(known)}")
    peer = importlib.import_module(f"benchmarks.peers.{name.replace('-', '_')}").PEER
    assert isinstance(peer, Peer)
    return peer
