"""TorchFT: each worker is a replica of its own below torchrun; a lighthouse says who is there, step by step."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

from benchmarks.launched import Command
from benchmarks.peers.base import Peer

# As its own documentation starts it, but for the address; a heartbeat that fails counts after the default's five seconds.
LIGHTHOUSE = ("--min_replicas", "1", "--quorum_tick_ms", "100", "--join_timeout_ms", "10000")


def start(python: Path, script: Sequence[str], workers: int) -> list[Command]:
    """The lighthouse, and an agent of torchelastic for each worker."""
    address = f"127.0.0.1:{_free_port()}"
    lighthouse = Command([str(python.with_name("torchft_lighthouse")), "--bind", address, *LIGHTHOUSE])
    replicas = []
    for rank in range(workers):
        agent = [
            str(python),
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            "1",
            "--max-restarts",
            "10",
        ]
        place = {"TORCHFT_LIGHTHOUSE": f"http://{address}", "REPLICA_GROUP_ID": str(rank)}
        replicas.append(Command([*agent, *script], {"OMP_NUM_THREADS": "1", **place}))
    return [lighthouse, *replicas]


def _free_port() -> int:
    """The lighthouse takes no socket that is open already, and tells nobody which port it has chosen."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


PEER = Peer("torchft", "TorchFT 0.2.0", "torchft_job.py", start)
