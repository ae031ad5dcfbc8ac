"""TorchDistributor, part of pyspark, with a like-sized model in PyTorch and gloo."""

from __future__ import annotations

from benchmarks.peers.base import Peer, SparkSubmit

PEER = Peer("torch-distributor", "TorchDistributor (pyspark 4.3.0)", "torch_distributor_job.py", SparkSubmit())
