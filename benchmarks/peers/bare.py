"""TensorFlow processes with TF_CONFIG, started by hand: the reference for all launchers; packages as hopsml's."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Sequence
from pathlib import Path

from benchmarks.launched import Command
from benchmarks.peers.base import Peer

BELOW_EPHEMERAL = range(12_000, 32_000)


def start(python: Path, script: Sequence[str], workers: int) -> list[Command]:
    """Return one process per worker; as by hand, the ports are free until TensorFlow binds them."""
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(workers)]}
    return [
        Command(
            [str(python), *script],
            {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})},
        )
        for rank in range(workers)
    ]


def free_ports(count: int) -> list[int]:
    """Return free ports of the loopback interface below the range from which the system assigns ports itself."""
    sockets: list[socket.socket] = []
    try:
        for port in random.sample(BELOW_EPHEMERAL, len(BELOW_EPHEMERAL)):
            if len(sockets) == count:
                break
            candidate = socket.socket()
            try:
                candidate.bind(("127.0.0.1", port))
            except OSError:
                candidate.close()
            else:
                sockets.append(candidate)
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


PEER = Peer("bare", "TensorFlow by hand", "bare_job.py", start, packages="hopsml")
