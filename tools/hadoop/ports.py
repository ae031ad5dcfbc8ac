"""Ports for daemons that must use the same address again after they were killed."""

from __future__ import annotations

import random
import socket
from collections.abc import Collection

# Below the range that Linux, macOS and the BSDs use for outgoing connections (32768 and up), so that no client
# takes the port of a daemon that is down for a while.
FIRST, LAST = 20000, 32000


def free_ports(count: int, address: str, taken: Collection[int] = ()) -> list[int]:
    """Return ``count`` different ports that are free at ``address`` and not in ``taken``.

    They are random, so that two clusters started at the same moment do not choose the same ones.
    """
    found: list[int] = []
    candidates = random.sample(range(FIRST, LAST), LAST - FIRST)
    while len(found) < count:
        if not candidates:
            raise OSError(f"fewer than {count} free ports between {FIRST} and {LAST} at {address}")
        port = candidates.pop()
        if port not in taken and _is_free(address, port):
            found.append(port)
    return found


def _is_free(address: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True
