"""``hopsml runs follow``: follow a run or a YARN application to its end, from any machine."""

from __future__ import annotations

import re
import sys
import time
from typing import Annotated

import typer

POLL_S = 1.0
_APPLICATION = re.compile(r"application_\d+_\d+")


def follow(
    what: Annotated[
        str,
        typer.Argument(metavar="RUN|APPLICATION", help="URL, path or id of a run, or the id of a YARN application."),
    ],
    end: Annotated[
        bool, typer.Option("--end", help="Cancel the run, or end the application, instead of following it.")
    ] = False,
    rank: Annotated[int, typer.Option(help="Rank of the worker whose output is printed.")] = 0,
) -> None:
    """Follow a run, a search or a YARN application to its end; the exit status is 0 only if it succeeds.

    Ctrl-C ends an application, as under `hopsml submit`; a run continues, and `hopsml runs cancel` ends it.
    """
    if not _APPLICATION.fullmatch(what):
        _follow_run(what, end, rank)
    from hopsml import submission

    if end:
        ended = submission.end(what)
        submission.to_stderr(f"{ended.id}: {ended.state}, {ended.final_status}")
        return
    with submission.Interrupts() as interrupts:
        outcome = submission.follow(what, interrupts=interrupts)
    raise typer.Exit(outcome.status)


def _follow_run(run: str, end: bool, rank: int) -> None:
    """Follow a run to its end, and raise typer.Exit with the exit status."""
    from hopsml.cli import searches
    from hopsml.cli.cancel import cancel
    from hopsml.core import settings
    from hopsml.core.states import Lifecycle
    from hopsml.errors import ArgumentError
    from hopsml.storage.run_dir import find
    from hopsml.submission import to_stderr
    from hopsml.tracking import catalog, live

    try:
        directory = find(run, settings.project_url())
    except ArgumentError as error:
        raise ArgumentError(
            f"'{run}' is neither the id of a YARN application (application_<time>_<number>) nor a run: {error}"
        ) from None
    if end:
        cancel(run)
    output, state, progress = live.Output(directory, rank), "", ""
    search = searches.seen(directory, directory.read_run())
    if search is not None:
        to_stderr(f"output of the trials: hopsml runs logs {run}, or {search.folder_of('TRIAL')}")
    try:
        while True:
            stored = catalog.read(directory, brief=True)  # before the output, so that the last output is not lost
            for text in output.more():
                sys.stdout.write(text)
            sys.stdout.flush()
            if search is not None and (now := searches.progress(searches.facts(search, stored.state))) != progress:
                progress = now
                to_stderr(progress)
            if stored.state != state:
                state = stored.state
                to_stderr(f"{directory.run_id}: {state}" + ("" if stored.status is None else _end_of(stored.status)))
            if state in (Lifecycle.FINISHED, Lifecycle.FAILED, Lifecycle.CANCELLED, Lifecycle.LOST):
                raise typer.Exit(0 if state == Lifecycle.FINISHED else 1)
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        to_stderr(f"the run continues; `hopsml runs cancel {run}` ends it")
        raise typer.Exit(130) from None


def _end_of(status: dict[str, object]) -> str:
    return f": {status['error']}" if status.get("error") else ""
