"""hopsml with nothing shared between executors: each has a fork server that imports TensorFlow by itself."""

from __future__ import annotations

from benchmarks.peers.base import Peer
from benchmarks.peers.hopsml import start

PEER = Peer("hopsml-apart", "hopsml, no shared import", "hopsml_job_apart.py", start, packages="hopsml")
