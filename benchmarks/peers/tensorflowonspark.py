"""TensorFlowOnSpark 2.2.5: a chief and a worker in Spark's Python workers."""

from __future__ import annotations

from benchmarks.peers.base import Peer, SparkSubmit

PEER = Peer("tensorflowonspark", "TensorFlowOnSpark 2.2.5", "tensorflowonspark_job.py", SparkSubmit())
