"""Groups of processes for failure tests: ``python -m tests.helpers.collective.family HARM TRANSPORT SIZE [encrypted]``.

This process imports the common modules, then forks the members of one group for each operation, so that the cost is little
more than that of one process. One member of each is killed or stopped during the operation; the report of each other member
is printed as a line of JSON. Nothing outlives this process: the kernel ends the members with it.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from hopsml.collective import Group
from hopsml.errors import CollectiveError
from tests.helpers.collective.together import SECRET, TRANSPORTS, addresses, listeners

COUNT = 300_000  # of the elements of each operation: several rounds, several milliseconds
DEADLINE_S = 0.6  # of an operation, where a member is stopped
WORK: dict[str, Callable[[Group, Any], object]] = {
    "all_reduce": lambda group, x: group.all_reduce(x),
    "all_gather": lambda group, x: group.all_gather(x),
    "broadcast": lambda group, x: group.broadcast(x),
    "reduce_scatter": lambda group, x: group.reduce_scatter(np.stack([x] * group.size)),
    "barrier": lambda group, x: group.barrier(),
}
HARM = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


def die_with_parent() -> None:
    """Let the kernel end this process with its parent."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def harm_soon(group: Group, operation: str, number: signal.Signals) -> None:
    """Harm this process during an operation; the time is reported first."""

    def harm() -> None:
        time.sleep(0.05)
        report(operation=operation, harmed=group.rank, at=time.monotonic())
        os.kill(os.getpid(), number)

    threading.Thread(target=harm, daemon=True).start()


def report(**what: Any) -> None:
    """Print one line atomically among several processes."""
    os.write(1, (json.dumps(what) + "\n").encode())


def member(
    rank: int, sockets: list[socket.socket], operation: str, harm: str, transport: str, victim: int, encrypted: bool
) -> None:
    """Repeat the operation until it fails."""
    names, size = addresses(sockets), len(sockets)
    group = Group.form(
        rank,
        names,
        secret=SECRET,
        hosts=TRANSPORTS[transport](size),
        listener=os.dup(sockets[rank].fileno()),
        timeout_s=DEADLINE_S if harm == "stop" else 0,
        form_timeout_s=60,
        encryption=encrypted,
    )
    for one in sockets:
        one.close()
    x = np.ones(COUNT, "float32")
    if rank == victim:
        harm_soon(group, operation, HARM[harm])
    try:
        while True:
            WORK[operation](group, x)
    except CollectiveError as error:
        kind, at = type(error).__name__, time.monotonic()
        report(operation=operation, rank=rank, error=kind, blamed=error.rank, at=at, text=str(error))


def main(harm: str, transport: str, size: int, encrypted: bool) -> None:
    """Run all operations concurrently, each with another victim."""
    survivors: list[int] = []
    victims: list[int] = []
    for number, operation in enumerate(WORK):
        sockets, victim = listeners(size), number % size
        for rank in range(size):
            pid = os.fork()
            if pid == 0:
                die_with_parent()
                member(rank, sockets, operation, harm, transport, victim, encrypted)
                os._exit(0)
            (victims if rank == victim else survivors).append(pid)
        for one in sockets:
            one.close()
    for pid in survivors:
        os.waitpid(pid, 0)
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:] == ["encrypted"])
