"""spark-tensorflow-distributor 1.0.0: MirroredStrategyRunner on a barrier stage."""

from __future__ import annotations

from benchmarks.peers.base import Peer, SparkSubmit

PEER = Peer(
    "spark-tensorflow-distributor", "spark-tensorflow-distributor 1.0.0", "tensorflow_distributor_job.py", SparkSubmit()
)
