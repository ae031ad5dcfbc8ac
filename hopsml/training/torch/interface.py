"""Choice of the network interface of the worker's address, so that gloo and NCCL listen on it and on no other."""

from __future__ import annotations

import os
import socket

from hopsml.cluster.worker.context import current


def choose(variable: str, exactly: str = "") -> None:
    """Set an environment variable to the name of the interface that has this worker's address.

    Nothing happens if the user has set the variable, or if this process is not a training worker.

    Args:
        variable: name of the environment variable.
        exactly: prefix of the value, such as "=" for an exact match.
    """
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
