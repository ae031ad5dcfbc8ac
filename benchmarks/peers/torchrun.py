"""torchrun: all workers of the node are started again when one is lost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.launched import Command
from benchmarks.peers.base import Peer


def start(python: Path, script: Sequence[str], workers: int) -> list[Command]:
    """One agent of torchelastic with all workers below it."""
    options = ["--nnodes", "1", "--nproc-per-node", str(workers), "--max-restarts", "10", "--standalone"]
    return [Command([str(python), "-m", "torch.distributed.run", *options, *script], {"OMP_NUM_THREADS": "1"})]


PEER = Peer(
    "torchrun", "torchrun 2.13.0, --max-restarts", "torchrun_elastic_job.py", start, packages="torch-distributor"
)
