"""A worker takes its ports and says where it listens, before the user's code runs.

A port is free when it is taken, and no other worker of hopsml on the host is given it while this process lives; the user's
own server binds it.
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

CHANGE_S = 1.0  # between two looks whether the group has changed around this worker
_held: list[network.HeldPort] = []  # of this process
_over = threading.Event()


@dataclass(frozen=True)
class TaskListener:
    """What a task's workers have to know: names of their ports, and where to say so (``folder`` "": nowhere).

    ``changes``: whether its group can change while a worker lives.
    """

    task: str
    ports: tuple[str, ...]
    folder: str
    launch: int
    port_range: tuple[int, int] | None = None
    changes: bool = False

    def wrapped(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, which each worker calls with its ports taken and announced."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            self.open(_own_host())
            return function(*args, **kwargs)

        return call

    def open(self, host: str) -> None:
        """Take the ports, into the environment of this process, and announce them."""
        numbers = {port: take(self.port_range) for port in self.ports}
        os.environ.update({names.port_variable(port): str(number) for port, number in numbers.items()})
        if not self.folder:
            return
        self.announce(_place(self.launch), host, numbers)
        if self.changes:
            _over.clear()
            follow = functools.partial(self._follow, _place(self.launch), host, numbers)
            threading.Thread(target=follow, name="hopsml-announcing", daemon=True).start()

    def begin(self) -> None:
        """Void what earlier launches of the task have said."""
        self._write(names.begun(self.launch), b"")

    def announce(self, place: names.ListeningPlace, host: str, numbers: Mapping[str, int]) -> None:
        """Say where a worker listens."""
        shown = f"[{host}]" if ":" in host else host
        self._write(place.file, json.dumps({"host": shown, "ports": dict(numbers)}).encode())

    def _follow(self, place: names.ListeningPlace, host: str, numbers: Mapping[str, int]) -> None:
        """Say it again under each rank that this worker has once others were lost, or have come."""
        while not _over.wait(CHANGE_S):
            if (now := _place(self.launch)) != place:
                self.announce(now, host, numbers)
                place = now

    def _write(self, name: str, content: bytes) -> None:
        url = urls.join(self.folder, self.task, name)
        for_url(url).write_bytes(url, content)


def take(port_range: tuple[int, int] | None) -> int:
    """The number of a port that nobody uses. Raises RunError where none of the range is free."""
    held = network.hold_port("", port_range)
    held.release()
    _held.append(held)
    return held.port


def forget() -> None:
    """Give the ports back and announce nothing more; in a process that goes on after its worker's end."""
    _over.set()
    while _held:
        _held.pop().close()


def remove_earlier(folder: str) -> None:
    """Delete what the tries before this one have left beside its folder. Raises StorageError."""
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
    found = context.current()
    if found is None:
        return names.ListeningPlace(launch, 0, 0, 1)
    return names.ListeningPlace(launch, found.generation, found.rank, found.world_size)


def _own_host() -> str:
    from hopsml.training import whereabouts

    return whereabouts.host()


def driver_host(variables: Mapping[str, str]) -> str:
    """The host of a driver: YARN names it to its containers; elsewhere the job is on this machine."""
    return variables.get("NM_HOST") or "127.0.0.1"


def known_tasks(tasks: Mapping[str, tuple[int, Sequence[str]]]) -> str:
    """The variable that tells workers of the tasks that have ports: the fewest workers of each, and names of ports."""
    return json.dumps({name: {"count": count, "ports": list(ports)} for name, (count, ports) in tasks.items() if ports})
