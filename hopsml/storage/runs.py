"""From what a person calls a run to its directory."""

from __future__ import annotations

from typing import Any

from hopsml.errors import ArgumentError
from hopsml.storage import filesystem, urls
from hopsml.storage.run_dir import EXPERIMENTS, RunDir


def find(run: Any, project_url: str) -> RunDir:
    """The directory of a run given by URL, by path, by id, or by an object with a ``run_dir``.

    Raises ArgumentError when there is none.
    """
    named = str(getattr(run, "run_dir", run))
    directory = RunDir(named if "/" in named else urls.join(project_url, EXPERIMENTS, named))
    if not filesystem.exists(directory.run_json):
        raise ArgumentError(
            f"run {named!r}: there is no {directory.run_json}; give the run's id, its URL or its path "
            "(HOPSML_PROJECT_URL says where ids are looked for)"
        )
    return directory
