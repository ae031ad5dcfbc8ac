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
VARIANTS = ("hopsml-apart", "spark-tensorflow-distributor-our-jvm")  # of two of them, with other settings
RECOVERING = ("ray-train-elastic", "torchrun")  # what of them goes on after the loss of a worker
OF_TORCH = ("torchft",)  # what is measured beside hopsml's PyTorch alone


def find(name: str) -> Peer:
    """The peer of this name. Raises ValueError for another one."""
    known = (*NAMES, *VARIANTS, *RECOVERING, *OF_TORCH)
    if name not in known:
        raise ValueError(f"peer '{name}' is not known; there are: {', '.join(known)}")
    peer = importlib.import_module(f"benchmarks.peers.{name.replace('-', '_')}").PEER
    assert isinstance(peer, Peer)
    return peer
