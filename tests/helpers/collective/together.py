"""Members of a group as threads of one process, each with separate descriptors and memory."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy.typing as npt

from hopsml.collective import Group

SECRET = b"a secret of the tests"
# How members reach each other -> the hosts that they name.
TRANSPORTS: dict[str, Callable[[int], list[str] | None]] = {
    "sockets": lambda size: None,
    "memory": lambda size: ["here"] * size,
    "both": lambda size: [("there", "here", "here")[rank % 3] for rank in range(size)],
}
Array = npt.NDArray[Any]


def listeners(size: int) -> list[socket.socket]:
    """Return a listening socket for each rank."""
    return [socket.create_server(("127.0.0.1", 0)) for _ in range(size)]


def addresses(sockets: list[socket.socket]) -> list[str]:
    """Return the addresses that other members connect to."""
    return [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]


def form(size: int, hosts: list[str] | None = None, **options: Any) -> list[Group]:
    """Return a group's members, by rank."""
    sockets = listeners(size)
    names = addresses(sockets)
    options = {"secret": SECRET, "form_timeout_s": 20, "timeout_s": 20} | options

    def one(rank: int) -> Group:
        return Group.form(rank, names, hosts=hosts, listener=sockets[rank].detach(), **options)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(one, range(size)))


@contextlib.contextmanager
def group(size: int, hosts: list[str] | None = None, **options: Any) -> Iterator[list[Group]]:
    """Yield a group's members, which are ended afterwards."""
    members = form(size, hosts, **options)
    try:
        yield members
    finally:
        for member in members:
            member.end()


def each(members: list[Group], work: Callable[[Group], Any]) -> list[Any]:
    """Return each member's result or exception, by rank."""

    def one(member: Group) -> Any:
        try:
            return work(member)
        except Exception as error:  # noqa: BLE001 - it is what is looked at
            return error

    with ThreadPoolExecutor(len(members)) as pool:
        return list(pool.map(one, members))


def held() -> tuple[int, int, int]:
    """Return descriptors, threads and memory (kB) of this process."""
    gc.collect()
    memory = int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0])
    return len(os.listdir("/proc/self/fd")), threading.active_count(), memory
