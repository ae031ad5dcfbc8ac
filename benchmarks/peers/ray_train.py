"""Ray Train: TensorflowTrainer on a cluster that the script itself starts on this machine."""

from __future__ import annotations

from benchmarks.peers.base import Peer, by_python

PEER = Peer("ray-train", "Ray Train 2.60.0", "ray_train_job.py", by_python)
