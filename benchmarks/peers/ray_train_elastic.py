"""Ray Train with max_failures: the whole group is restarted when a worker is lost."""

from __future__ import annotations

from benchmarks.peers.base import Peer, by_python

PEER = Peer(
    "ray-train-elastic",
    "Ray Train 2.60.0, max_failures",
    "ray_train_elastic_job.py",
    by_python,
    packages="ray-train",
)
