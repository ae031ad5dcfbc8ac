"""Search for the run that a user means by a name, or by the beginning of an id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hopsml.core import suggestions
from hopsml.errors import ArgumentError
from hopsml.storage import filesystem, urls
from hopsml.storage.run_dir import RunDir, find_run_dir
from hopsml.tracking import catalog
from hopsml.tracking.catalog import StoredRun
from hopsml.tracking.listing import time_text

SHOWN = 5  # candidates in the error message for an ambiguous name
_COMPARED = 100  # newest runs whose ids and names are compared with one that does not exist
_READ_AT_ONCE = 64  # records that are read before the next ones, in the search for a name


def resolve(run: str, project_url: str, *, is_exact: bool = False) -> tuple[RunDir, str]:
    """Return the directory of a run given by URL, path, id, the beginning of its id, or its name.

    Args:
        run: what the user gave. Of several runs with a name it means the newest one.
        project_url: URL of the project in which ids and names are searched.
        is_exact: True to refuse the beginning of an id, and a name of several runs.

    Returns:
        The directory, and a note that names the run if it was not given by URL, path or id; else "".

    Raises:
        ArgumentError: there is no such run, or the text fits several ones, which the message lists.
        StorageError: the project cannot be listed.
    """
    try:
        return find_run_dir(run, project_url), ""
    except ArgumentError as error:
        if not run or "/" in run:
            raise
        missing = error
    entries = catalog.run_folders(project_url)
    begun = [entry for entry in entries if urls.name(entry.url).startswith(run)]
    if len(begun) == 1 and not is_exact and filesystem.exists(RunDir(begun[0].url).run_json):
        directory = RunDir(begun[0].url)
        return directory, f"{run!r} is the beginning of the id {directory.run_id}"
    named = _named(run, entries, all_of_them=is_exact)
    if len(named) == 1 or (named and not is_exact):
        newest, of_several = named[0], "the newest one with this name, " if len(named) > 1 else ""
        started = time_text(newest.run.get("started"))
        return newest.directory, f"{run!r} is the name of run {newest.run_id}, {of_several}started {started}"
    if not named and not begun:
        raise ArgumentError(_unknown_text(run, project_url)) from missing
    if found := named or catalog.read_runs(begun[: SHOWN + 1]):
        what, count = ("name", len(named)) if named else ("beginning of the id", len(begun))
        raise ArgumentError(f"no run has the id {run!r}; it is the {what} of {_candidates(found, count)}")
    raise missing


def find(run: Any, project_url: str) -> RunDir:
    """Return the directory of a run given by URL, path, id, a name that only one run has, or an object with a ``run_dir``.

    Raises:
        ArgumentError: there is no such run, or several; the message has similar ones, or lists them.
        StorageError: the project cannot be listed.
    """
    return resolve(str(getattr(run, "run_dir", run)), project_url, is_exact=True)[0]


def _unknown_text(run: str, project_url: str) -> str:
    """Return the error message for a run that a project does not have, with similar ids and names."""
    text = f"run {run!r}: {project_url} has no run with this id or name"
    newest = catalog.recent_runs(project_url, _COMPARED)
    if not newest:
        return f"{text}, and no other run; HOPSML_PROJECT_URL, or the working folder, selects the project"
    names = {str(one.run["name"]): one for one in reversed(newest) if one.run.get("name")}
    known = {one.run_id: one for one in newest} | names
    similar = suggestions.similar_names(run, known)
    shown = [
        f"{known[name].run.get('name') or 'no name'} ({known[name].run_id})" for name in similar or list(names)[-SHOWN:]
    ]
    which = f"did you mean {' or '.join(dict.fromkeys(shown))}?" if similar else f"the newest are {', '.join(shown)}"
    return (
        f"{text}; {which} `hopsml runs ls` lists all; give the id, name, URL or path of a run "
        "(HOPSML_PROJECT_URL selects the project)"
    )


def _candidates(found: Sequence[StoredRun], count: int) -> str:
    """Return the ids of runs, with name, state and start of each."""
    texts = [
        f"{run.run_id} ({run.run.get('name') or 'no name'}, {run.state}, {time_text(run.run.get('started'))})"
        for run in found[:SHOWN]
    ]
    more = f", and {count - SHOWN} more (`hopsml runs ls` lists them)" if count > SHOWN else ""
    return f"{', '.join(texts)}{more}; give the id of one"


def _named(name: str, entries: Sequence[filesystem.FileStatus], *, all_of_them: bool) -> list[StoredRun]:
    """Return runs of a name, the newest first: all, or those among the folders that were changed last."""
    found: list[StoredRun] = []
    for begin in range(0, len(entries), _READ_AT_ONCE):
        found += [
            run for run in catalog.read_runs(entries[begin : begin + _READ_AT_ONCE]) if run.run.get("name") == name
        ]
        if found and not all_of_them:
            break
    return sorted(found, key=catalog.start_time_s, reverse=True)
