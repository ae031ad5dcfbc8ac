"""Waits for the leader's port before the strategy is built.

TensorFlow's channel retries a refused first connection only after a fixed second: a worker that comes before
its leader loses it at every launch. Asking the port first, every 5 ms, costs nothing.
"""

from __future__ import annotations

import socket
import time

from hopsml.errors import StartTimeout

POLL_S = 0.005
DEFAULT_TIMEOUT_S = 120.0


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port``; brackets around an IPv6 host are dropped."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def wait_for_port(address: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> float:
    """Return once something listens at ``address`` ("host:port"), with the seconds that it took.

    Raises StartTimeout when nothing does within ``timeout_s`` seconds.
    """
    host, port = split_address(address)
    begin = time.monotonic()
    deadline = begin + timeout_s
    cause = "no attempt was made"
    while (left := deadline - time.monotonic()) > 0:
        try:
            # A host that drops packets must not use up the whole deadline in one attempt.
            socket.create_connection((host, port), timeout=min(left, 1.0)).close()
            return time.monotonic() - begin
        except OSError as error:
            cause = str(error)
        time.sleep(POLL_S)
    raise StartTimeout(
        f"the leader's port {address} did not open within {timeout_s:g} s (last answer: {cause}); rank 0 "
        "has not built its strategy: see its log for the reason, and check that this host may reach that port"
    )
