"""torchrun: all workers of the node are restarted when one is lost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.launched import Command
from benchmarks.peers.base import Peer


def start(python: Path, script: Sequence[str], workers: int) -> list[Command]:
    """Return the command of one torchelastic agent with all workers below it."""
    options = ["--nnodes", "1", "--nproc-per-node", str(workers), "--max-restarts", "10", "--standalone"]
    variables = {
        "OMP_NUM_THREADS": "1",
        # Otherwise gloo's new processes read the addresses of killed ones from the agent's store, are refused, and the
        # group is restarted repeatedly: seen in two of three rounds.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    return [Command([str(python), "-m", "torch.distributed.run", *options, *script], variables)]


PEER = Peer(
    "torchrun", "torchrun 2.13.0, --max-restarts", "torchrun_elastic_job.py", start, packages="torch-distributor"
)
