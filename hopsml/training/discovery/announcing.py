"""Reservation of a worker's ports and publication of its address before the user's code runs.

A port is free when it is reserved, and no other hopsml worker on the host gets it while this process lives; the
user's own server binds it.
"""

from __future__ import annotations

import functools
import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hopsml.cluster.agent import network
from hopsml.cluster.worker import context
from hopsml.errors import PathNotFound
from hopsml.storage import urls
from hopsml.storage.filesystem import for_url
from hopsml.training.discovery import names

CHANGE_S = 1.0  # seconds between two checks whether the group has changed around this worker
_held: list[network.HeldPort] = []  # ports reserved by this process
_over = threading.Event()


@dataclass(frozen=True)
class TaskListener:
    """Reservation of a task's ports in its workers, which publish their addresses as files in ``folder`` ("": nowhere).

    ``changes`` is True if the group can change while a worker lives.
    """

    task: str
    ports: tuple[str, ...]
    folder: str
    launch: int
    port_range: tuple[int, int] | None = None
    changes: bool = False

    def wrapped(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function so that each worker reserves and publishes its ports before calling it."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            self.open(_own_host())
            return function(*args, **kwargs)

        return call

    def open(self, host: str) -> None:
        """Reserve the ports, export them to this process's environment, and publish them."""
        numbers = {port: take(self.port_range) for port in self.ports}
        os.environ.update({names.port_variable(port): str(number) for port, number in numbers.items()})
        if not self.folder:
            return
        self.announce(_place(self.launch), host, numbers)
        if self.changes:
            _over.clear()
            follow = functools.partial(self._follow, _place(self.launch), host, numbers)
            threading.Thread(target=follow, name="hopsml-announcing", daemon=True).start()

    def invalidate_addresses(self) -> None:
        """Invalidate the addresses published by earlier launches of the task."""
        self._write(names.begun(self.launch), b"")

    def announce(self, place: names.ListeningPlace, host: str, numbers: Mapping[str, int]) -> None:
        """Write a worker's host and ports to the task's folder."""
        shown = f"[{host}]" if ":" in host else host
        self._write(place.file, json.dumps({"host": shown, "ports": dict(numbers)}).encode())

    def _follow(self, place: names.ListeningPlace, host: str, numbers: Mapping[str, int]) -> None:
        """Publish the address again under each new rank that this worker gets when the group changes."""
        while not _over.wait(CHANGE_S):
            if (now := _place(self.launch)) != place:
                self.announce(now, host, numbers)
                place = now

    def _write(self, name: str, content: bytes) -> None:
        """Write a file to the task's folder."""
        url = urls.join(self.folder, self.task, name)
        for_url(url).write_bytes(url, content)


def take(port_range: tuple[int, int] | None) -> int:
    """Reserve a free port and return its number; raise RunError if no port of the range is free."""
    held = network.hold_port("", port_range)
    held.release()
    _held.append(held)
    return held.port


def forget() -> None:
    """Release the ports and stop publishing, in a process that continues after its worker's end."""
    _over.set()
    while _held:
        _held.pop().close()


def remove_earlier(folder: str) -> None:
    """Delete the sibling folders of earlier tries of a job; raise StorageError if that fails.

    Args:
        folder: URL of the present try's folder, whose name is the try's number.
    """
    above, this = urls.parent(folder), int(urls.name(folder))
    store = for_url(above)
    try:
        tries = [entry.name for entry in store.list_dir(above) if entry.name.isdigit()]
    except PathNotFound:
        return
    for name in tries:
        if int(name) < this:
            store.delete(urls.join(above, name), recursive=True)


def _place(launch: int) -> names.ListeningPlace:
    """Return this worker's place in its task and group."""
    found = context.current()
    if found is None:
        return names.ListeningPlace(launch, 0, 0, 1)
    return names.ListeningPlace(launch, found.generation, found.rank, found.world_size)


def _own_host() -> str:
    """Return the address by which other workers reach this one."""
    from hopsml.training import task_addresses

    return task_addresses.host()


def driver_host(variables: Mapping[str, str]) -> str:
    """Return the host of a driver: YARN sets it for its containers; elsewhere the job is on this machine."""
    return variables.get("NM_HOST") or "127.0.0.1"


def known_tasks(tasks: Mapping[str, tuple[int, Sequence[str]]]) -> str:
    """Return the value of the variable that describes the tasks with ports.

    It holds the least number of workers of each, and the names of its ports.
    """
    return json.dumps({name: {"count": count, "ports": list(ports)} for name, (count, ports) in tasks.items() if ports})
