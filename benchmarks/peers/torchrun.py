"""torchrun: all workers of the node are started again when one is lost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.launched import Command
from benchmarks.peers.base import Peer


def start(python: Path, script: Sequence[str], workers: int) -> list[Command]:
    """One agent of torchelastic with all workers below it."""
    options = ["--nnodes", "1", "--nproc-per-node", str(workers), "--max-restarts", "10", "--standalone"]
    variables = {
        "OMP_NUM_THREADS": "1",
        # Else gloo's new processes read the addresses of those that were killed from the agent's store, are refused, and the
        # group is started again and again: seen in two of three rounds.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    return [Command([str(python), "-m", "torch.distributed.run", *options, *script], variables)]


PEER = Peer(
    "torchrun", "torchrun 2.13.0, --max-restarts", "torchrun_elastic_job.py", start, packages="torch-distributor"
)
