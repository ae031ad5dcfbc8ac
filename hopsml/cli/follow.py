"""``hopsml follow RUN|APPLICATION``: go on following what was started, from anywhere."""

from __future__ import annotations

import re
import sys
import time
from typing import Annotated

import typer

POLL_S = 1.0
_APPLICATION = re.compile(r"application_\d+_\d+")


def follow(
    what: Annotated[str, typer.Argument(help="a run (URL, path or id), or an application's id of YARN")],
    end: Annotated[bool, typer.Option("--end", help="end it")] = False,
    rank: Annotated[int, typer.Option(help="of a run: whose output")] = 0,
) -> None:
    """Follow a run, a search, or an application of YARN, to its end. The exit status is 0 only if it succeeded.

    Ctrl-C ends an application, as it does under `hopsml submit`; a run goes on, and `hopsml cancel` ends it.
    """
    if not _APPLICATION.fullmatch(what):
        _follow_run(what, end, rank)
    from hopsml import submission

    if end:
        over = submission.end(what)
        submission.to_stderr(f"{over.id}: {over.state}, {over.final_status}")
        return
    with submission.Interrupts() as interrupts:
        outcome = submission.follow(what, interrupts=interrupts)
    raise typer.Exit(outcome.status)


def _follow_run(run: str, end: bool, rank: int) -> None:
    """Follow a run to its end; raises typer.Exit with the status."""
    from hopsml import settings
    from hopsml.cli import searches
    from hopsml.cli.cancel import cancel
    from hopsml.errors import ArgumentError
    from hopsml.states import Lifecycle
    from hopsml.storage.run_dir import find
    from hopsml.submission import to_stderr
    from hopsml.tracking import catalog, live

    try:
        directory = find(run, settings.project_url())
    except ArgumentError as error:
        raise ArgumentError(
            f"'{run}' is no id of a YARN application (application_<time>_<number>), nor a run: {error}"
        ) from None
    if end:
        cancel(run)
    output, told, far = live.Output(directory, rank), "", ""
    search = searches.seen(directory, directory.read_run())
    if search is not None:
        to_stderr(f"what its trials print: hopsml logs {run}, or {search.folder_of('TRIAL')}")
    try:
        while True:
            stored = catalog.read(directory, brief=True)  # before the output: what comes behind the end is not missed
            for text in output.more():
                sys.stdout.write(text)
            sys.stdout.flush()
            if search is not None and (now := searches.progress(searches.facts(search, stored.state))) != far:
                far = now
                to_stderr(far)
            if stored.state != told:
                told = stored.state
                to_stderr(f"{directory.run_id}: {told}" + ("" if stored.status is None else _end_of(stored.status)))
            if told in (Lifecycle.FINISHED, Lifecycle.FAILED, Lifecycle.CANCELLED, Lifecycle.LOST):
                raise typer.Exit(0 if told == Lifecycle.FINISHED else 1)
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        to_stderr(f"it goes on; `hopsml cancel {run}` ends it")
        raise typer.Exit(130) from None


def _end_of(status: dict[str, object]) -> str:
    return f": {status['error']}" if status.get("error") else ""
