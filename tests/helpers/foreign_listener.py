"""Listener of another user, which stores what it receives; only root can start one."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

OTHER = 12002  # uid of another user


@dataclass
class OtherUsersListener:
    """Listener of another user.

    Attributes:
        port: Its port.
        received: All data that it has received, when its process has ended.
    """

    port: int
    received: bytes = b""


@contextmanager
def foreign_listener(port: int = 0, host: str = "127.0.0.1") -> Iterator[OtherUsersListener]:
    """Listen in a process of another user, which closes each connection after its first data."""
    told, tells = os.pipe()
    stay, leave = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(leave)
        try:
            os.setgroups([])
            os.setgid(OTHER)
            os.setuid(OTHER)
            _listen(host, port, stay, tells)
        finally:
            os._exit(0)
    os.close(stay)
    os.close(tells)
    try:
        line = os.read(told, 5)
        assert line, "the process could not listen"
        found = OtherUsersListener(int(line))
        try:
            yield found
        finally:
            os.close(leave)
            while part := os.read(told, 1 << 16):
                found.received += part
    finally:
        os.close(told)
        os.waitpid(child, 0)


def _listen(host: str, port: int, stay: int, tells: int) -> None:
    """Write the port to a pipe, then what connections receive, until the other pipe ends."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family, dualstack_ipv6=host == "::") as listener:
        os.write(tells, b"%5d" % listener.getsockname()[1])
        while listener in select.select([listener, stay], [], [])[0]:
            connection = listener.accept()[0]
            with connection:
                os.write(tells, connection.recv(1 << 16))
