"""The state of a stored run, for the tasks that wait for it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from hopsml.airflow import outcomes
from hopsml.errors import ArgumentError, PathNotFound
from hopsml.states import ENDS
from hopsml.storage import urls
from hopsml.storage.run_dir import EXPERIMENTS, RunDir
from hopsml.tracking import catalog


def directory_of(run: str, project_url: str) -> RunDir:
    """The directory, existing or not, of a run that is given by id, path or URL."""
    return RunDir(run if "/" in run else urls.join(project_url, EXPERIMENTS, run))


def ended(run: str, project_url: str) -> dict[str, Any] | None:
    """State, directory and metrics of a run; None while it has not begun or ended. Raises StorageError."""
    directory = directory_of(run, project_url)
    try:
        stored = catalog.read(directory, brief=True)
    except PathNotFound:
        return None
    if stored.state not in ENDS:
        return None
    return {**outcomes.of_run(directory), "state": stored.state}


def checked(name: str, states: Collection[str]) -> tuple[str, ...]:
    """Names of end states, validated. Raises ArgumentError for an unknown one."""
    for state in states:
        if state not in ENDS:
            raise ArgumentError(f"{name}: {state!r} is no state in which a run ends; those are {', '.join(ENDS)}")
    return tuple(states)
