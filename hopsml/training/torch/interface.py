"""The network interface by which the others know this worker, for gloo and NCCL to listen on, and on no other."""

from __future__ import annotations

import os
import socket

from hopsml.cluster.worker.context import current


def choose(variable: str, exactly: str = "") -> None:
    """Set ``variable`` to its name, behind ``exactly``, unless the user has set it, or this is no worker that trains."""
    import psutil

    context = current()
    if context is None or context.collective is None or variable in os.environ:
        return
    host = context.collective.addresses[context.rank].rpartition(":")[0].strip("[]")
    try:
        own = {found[4][0] for found in socket.getaddrinfo(host, None)}
    except OSError:
        return
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address.partition("%")[0] in own for address in addresses):
            os.environ[variable] = exactly + name
            return
