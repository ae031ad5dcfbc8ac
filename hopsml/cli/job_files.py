"""Loading of job files for commands, with one line on stderr for each error of the file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hopsml.service.spec import JobSpec

WRONG = 2  # exit status for a job file with errors
JobFile = Annotated[str, typer.Argument(metavar="FILE", help="Path of the job file.")]


def loaded_job(job: str) -> JobSpec:
    """Load a job file; print its errors to stderr and exit with status 2 if it has any."""
    check_installed()
    from hopsml.errors import JobFileError
    from hopsml.service import spec

    try:
        return spec.load(job)
    except JobFileError as error:
        typer.echo("\n".join(error.problems), err=True)
        raise typer.Exit(WRONG) from None


def check_installed() -> None:
    """Raise ArgumentError if the extra ``service`` is not installed."""
    from importlib.util import find_spec

    from hopsml.core import extras
    from hopsml.errors import ArgumentError

    for name in ("pydantic", "croniter"):
        if find_spec(name) is None:
            raise ArgumentError(f"job files need {name}, which is not installed: {extras.install('service')}")
