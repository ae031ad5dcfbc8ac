"""``hopsml follow APPLICATION``: go on following what was submitted, from anywhere."""

from __future__ import annotations

from typing import Annotated

import typer


def follow(
    application: Annotated[str, typer.Argument(help="its id, as `hopsml submit --detach` prints it")],
    end: Annotated[bool, typer.Option("--end", help="end it")] = False,
) -> None:
    """Follow an application of YARN to its end; Ctrl-C ends it. The exit status is 0 only if it succeeded."""
    from hopsml import submission

    if end:
        over = submission.end(application)
        submission.to_stderr(f"{over.id}: {over.state}, {over.final_status}")
        return
    with submission.Interrupts() as interrupts:
        outcome = submission.follow(application, interrupts=interrupts)
    raise typer.Exit(outcome.status)
