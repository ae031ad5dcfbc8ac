"""TorchFT: each worker is a separate replica below torchrun; a lighthouse reports the members, step by step."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

from benchmarks.launched import Command
from benchmarks.peers.base import Peer

# As in its own documentation, except for the address; a failed heartbeat counts after the default of five seconds.
LIGHTHOUSE = ("--min_replicas", "1", "--quorum_tick_ms", "100", "--join_timeout_ms", "10000")


def start(python: Path, script: Sequence[str], workers: int) -> list[Command]:
    """Return the commands of the lighthouse and of a torchelastic agent for each worker."""
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
    """Return a free port: the lighthouse accepts no open socket, and does not report a port that it chose itself."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


PEER = Peer("torchft", "TorchFT 0.2.0", "torchft_job.py", start)
