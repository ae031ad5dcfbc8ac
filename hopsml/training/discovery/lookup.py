"""Lookup of the addresses of another task's workers, from inside a task of the same job."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import Any

from hopsml.core import suggestions
from hopsml.errors import ArgumentError, PathNotFound, StartTimeout
from hopsml.storage import urls
from hopsml.storage.backoff import pause_s
from hopsml.storage.filesystem import for_url, read_record
from hopsml.training.discovery import names

_SOON_S, _LATER_S = 0.1, 2.0  # seconds between two polls, at first and in the end


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
    folder = urls.join(given[names.FOLDER], task)
    deadline = time.monotonic() + timeout_s
    looks = 0
    while True:
        found = _look(folder, port or known["ports"][0])
        if isinstance(found, list):
            return found
        if (left := deadline - time.monotonic()) <= 0:
            there, wanted = found
            raise StartTimeout(
                f"task {task!r}: {there} of {wanted or known['count']} workers have said where they listen within "
                f"{timeout_s:g} s; its log says why (`hopsml jobs logs`), or give them more time with timeout_s="
            )
        looks += 1
        time.sleep(min(pause_s(looks, _SOON_S, _LATER_S), left))


def found_now(folder: str, task: str, port: str) -> list[str]:
    """Return the addresses of a task's workers without waiting; empty if not all have published theirs."""
    found = _look(urls.join(folder, task), port)
    return found if isinstance(found, list) else []


def _known(task: str, port: str, given: Mapping[str, str]) -> Mapping[str, Any]:
    """Return the description of a task from the environment: least number of workers, and names of ports."""
    if not given.get(names.FOLDER) or not given.get(names.TASKS):
        raise ArgumentError(
            f"the addresses of task {task!r} are not known: this process is no task of a job that a service has started; "
            f"call it there, or set {names.FOLDER} to one folder for all drivers of the job"
        )
    tasks: dict[str, dict[str, Any]] = json.loads(given[names.TASKS])
    if task not in tasks:
        there = "there are: " + (", ".join(tasks) or "none")
        raise ArgumentError(f"this job has no task {task!r} with ports; {suggestions.instead(task, tasks, there)}")
    ports = tasks[task]["ports"]
    if port and port not in ports:
        there = "there are: " + ", ".join(ports)
        raise ArgumentError(f"task {task!r} has no port {port!r}; {suggestions.instead(port, ports, there)}")
    return tasks[task]


def _look(folder: str, port: str) -> list[str] | tuple[int, int]:
    """Return the addresses if all are published, else how many are, and of how many (0 if unknown)."""
    store = for_url(folder)
    try:
        places = names.newest(entry.name for entry in store.list_dir(folder))
        if not places or len(places) < places[0].size:
            return len(places), places[0].size if places else 0
        said = [json.loads(read_record(urls.join(folder, place.file))) for place in places]
    except PathNotFound:  # no worker has started, or an older try's folder is being removed
        return 0, 0
    return [f"{one['host']}:{one['ports'][port]}" for one in said]
