"""Addresses of a job's tasks: workers reserve ports and publish them as files, which other tasks of the job read.

    <job's folder>/<try>/<task>/3.begun             the task's third launch has begun: earlier addresses are invalid
    <job's folder>/<try>/<task>/3-1-0-2.json        of that launch, in its generation 1, rank 0 of 2 workers

A port is free when it is reserved, and no other hopsml worker on the host gets it while this process lives; the user's
own server binds it.
"""

from __future__ import annotations

import functools
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hopsml.cluster.agent import network
from hopsml.cluster.worker import context
from hopsml.core import suggestions
from hopsml.core.variables import Settings
from hopsml.errors import ArgumentError, PathNotFound, StartTimeout
from hopsml.storage import urls
from hopsml.storage.backoff import pause_s
from hopsml.storage.filesystem import for_url, read_record

FOLDER, TASKS = "HOPSML_JOB_FOLDER", "HOPSML_JOB_TASKS"  # the folder of addresses; the tasks that have ports
OURS, PORT = "HOPSML_TASK_", "HOPSML_PORT_"  # prefixes of variables
_END = "_ADDRESSES"
_SAID = re.compile(r"([0-9]+)-([0-9]+)-([0-9]+)-([0-9]+)\.json")
_BEGUN = re.compile(r"([0-9]+)\.begun")
CHANGE_S = 1.0  # seconds between two checks whether the group has changed around this worker
_held: list[network.HeldPort] = []  # ports reserved by this process
_over = threading.Event()
_SOON_S, _LATER_S = 0.1, 2.0  # seconds between two polls, at first and in the end


def address_variable(task: str) -> str:
    """Return the name of the variable for a task's addresses.

    It is unique among the tasks of a job, because their names contain no underscore.
    """
    return f"{OURS}{_upper(task)}{_END}"


def port_variable(port: str) -> str:
    """Return the name of the variable in which a worker finds the number of a port."""
    return f"{PORT}{_upper(port)}"


def _upper(name: str) -> str:
    """Return a name in the form used in variables."""
    return name.upper().replace("-", "_")


@dataclass(frozen=True, order=True, slots=True)
class ListeningWorker:
    """Identity of a listening worker of a task; those of the newest launch and newest generation are valid.

    ``launch`` grows with each start of the task's driver, ``generation`` with each time that its group is formed
    again.
    """

    launch: int
    generation: int
    rank: int
    size: int

    @property
    def file_name(self) -> str:
        """Name of the file that holds this worker's address."""
        return f"{self.launch}-{self.generation}-{self.rank}-{self.size}.json"


def launch_marker_name(launch: int) -> str:
    """Return the name of the file that invalidates the addresses of earlier launches."""
    return f"{launch}.begun"


def newest_workers(names: Iterable[str]) -> tuple[ListeningWorker, ...]:
    """Return the valid places among the files of a task's folder, in rank order.

    The set is complete if it has as many places as their ``size``.
    """
    places, launches = set(), {0}
    for name in names:
        if said := _SAID.fullmatch(name):
            place = ListeningWorker(*map(int, said.groups()))
            places.add(place)
            launches.add(place.launch)
        elif started := _BEGUN.fullmatch(name):
            launches.add(int(started[1]))
    of_launch = [place for place in places if place.launch == max(launches)]
    generation = max((place.generation for place in of_launch), default=0)
    return tuple(sorted(place for place in of_launch if place.generation == generation))


@dataclass(frozen=True)
class TaskPorts:
    """Reservation of a task's ports in its workers, which publish their addresses as files in ``folder`` ("": nowhere).

    ``changes`` is True if the group can change while a worker lives.
    """

    task: str
    ports: tuple[str, ...]
    folder: str
    launch: int
    port_range: tuple[int, int] | None = None
    changes: bool = False

    def wrap_function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function so that each worker reserves and publishes its ports before calling it."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            self.reserve_and_publish(_own_host())
            return function(*args, **kwargs)

        return call

    def reserve_and_publish(self, host: str) -> None:
        """Reserve the ports, export them to this process's environment, and publish them."""
        numbers = {port: reserve_port(self.port_range) for port in self.ports}
        os.environ.update({port_variable(port): str(number) for port, number in numbers.items()})
        if not self.folder:
            return
        self.write_addresses(_place(self.launch), host, numbers)
        if self.changes:
            _over.clear()
            follow = functools.partial(self._follow, _place(self.launch), host, numbers)
            threading.Thread(target=follow, name="hopsml-announcing", daemon=True).start()

    def invalidate_addresses(self) -> None:
        """Invalidate the addresses published by earlier launches of the task."""
        self._write(launch_marker_name(self.launch), b"")

    def write_addresses(self, place: ListeningWorker, host: str, numbers: Mapping[str, int]) -> None:
        """Write a worker's host and ports to the task's folder."""
        shown = f"[{host}]" if ":" in host else host
        self._write(place.file_name, json.dumps({"host": shown, "ports": dict(numbers)}).encode())

    def _follow(self, place: ListeningWorker, host: str, numbers: Mapping[str, int]) -> None:
        """Publish the address again under each new rank that this worker gets when the group changes."""
        while not _over.wait(CHANGE_S):
            if (now := _place(self.launch)) != place:
                self.write_addresses(now, host, numbers)
                place = now

    def _write(self, name: str, content: bytes) -> None:
        """Write a file to the task's folder."""
        url = urls.join(self.folder, self.task, name)
        for_url(url).write_bytes(url, content)


def reserve_port(port_range: tuple[int, int] | None) -> int:
    """Reserve a free port and return its number; raise RunError if no port of the range is free."""
    held = network.hold_port("", port_range)
    held.let_any_server_bind()
    _held.append(held)
    return held.port


def release_ports() -> None:
    """Release the ports and stop publishing, in a process that continues after its worker's end."""
    _over.set()
    while _held:
        _held.pop().close()


def delete_earlier_tries(folder: str) -> None:
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


def _place(launch: int) -> ListeningWorker:
    """Return this worker's place in its task and group."""
    found = context.current()
    if found is None:
        return ListeningWorker(launch, 0, 0, 1)
    return ListeningWorker(launch, found.generation, found.rank, found.world_size)


def _own_host() -> str:
    """Return the address by which other workers reach this one."""
    from hopsml.training import distributed

    return distributed.host()


def driver_host(variables: Mapping[str, str]) -> str:
    """Return the host of a driver: YARN sets it for its containers; elsewhere the job is on this machine."""
    return variables.get("NM_HOST") or "127.0.0.1"


def encode_tasks(tasks: Mapping[str, tuple[int, Sequence[str]]]) -> str:
    """Return the value of the variable that describes the tasks with ports.

    It holds the least number of workers of each, and the names of its ports.
    """
    return json.dumps({name: {"count": count, "ports": list(ports)} for name, (count, ports) in tasks.items() if ports})


def addresses(
    task: str, *, port: str = "", timeout_s: float = 300.0, variables: Mapping[str, str] | None = None
) -> list[str]:
    """Return the addresses of a task's workers, "host:port", in rank order, once all of them have started.

    A worker publishes its address before its code runs, so a client that connects at once may have to retry.

    Args:
        task: a task of the same job that has ``ports``.
        port: name of the port; the first one if left out.
        timeout_s: seconds to wait for workers that have not started yet.
        variables: used instead of this process's environment.

    Raises:
        ArgumentError: the job has no such task or port, or the call is outside of a job.
        StartTimeout: the time is over.
    """
    given = os.environ if variables is None else variables
    known = _known(task, port, given)
    folder = urls.join(given[FOLDER], task)
    deadline = time.monotonic() + timeout_s
    looks = 0
    while True:
        found = _look(folder, port or known["ports"][0])
        if isinstance(found, list):
            return found
        if (left := deadline - time.monotonic()) <= 0:
            there, wanted = found
            raise StartTimeout(
                f"task {task!r}: only {there} of {wanted or known['count']} workers have reported their addresses "
                f"within {timeout_s:g} s; see the log of the task (`hopsml jobs logs`), or allow more time with "
                "timeout_s="
            )
        looks += 1
        time.sleep(min(pause_s(looks, _SOON_S, _LATER_S), left))


def published_addresses(folder: str, task: str, port: str) -> list[str]:
    """Return the addresses of a task's workers without waiting; empty if not all have published theirs."""
    found = _look(urls.join(folder, task), port)
    return found if isinstance(found, list) else []


def _known(task: str, port: str, given: Mapping[str, str]) -> Mapping[str, Any]:
    """Return the description of a task from the environment: least number of workers, and names of ports."""
    if not Settings(given).job_folder or not Settings(given).job_tasks:
        raise ArgumentError(
            f"the addresses of task {task!r} are unknown, since this process is not a task of a job of the job "
            f"service; call this function in such a task, or set {FOLDER} to one folder for all drivers of the job"
        )
    tasks: dict[str, dict[str, Any]] = json.loads(given[TASKS])
    if task not in tasks:
        there = "there are: " + (", ".join(tasks) or "none")
        raise ArgumentError(
            f"this job has no task {task!r} with ports; {suggestions.suggestion_text(task, tasks, there)}"
        )
    ports = tasks[task]["ports"]
    if port and port not in ports:
        there = "there are: " + ", ".join(ports)
        raise ArgumentError(f"task {task!r} has no port {port!r}; {suggestions.suggestion_text(port, ports, there)}")
    return tasks[task]


def _look(folder: str, port: str) -> list[str] | tuple[int, int]:
    """Return the addresses if all are published, else how many are, and of how many (0 if unknown)."""
    store = for_url(folder)
    try:
        places = newest_workers(entry.name for entry in store.list_dir(folder))
        if not places or len(places) < places[0].size:
            return len(places), places[0].size if places else 0
        said = [json.loads(read_record(urls.join(folder, place.file_name))) for place in places]
    except PathNotFound:  # no worker has started, or an older try's folder is being removed
        return 0, 0
    return [f"{one['host']}:{one['ports'][port]}" for one in said]
