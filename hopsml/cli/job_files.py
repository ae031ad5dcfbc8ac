"""A job file as commands take it: its mistakes are told, each with its line, and end the command."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from hopsml.service.spec import JobSpec

WRONG = 2  # exit status


def loaded_job(job: str) -> JobSpec:
    """The job of a file; its mistakes go to stderr, and the command ends with status 2."""
    check_installed()
    from hopsml.errors import JobFileError
    from hopsml.service import spec

    try:
        return spec.load(job)
    except JobFileError as error:
        typer.echo("\n".join(error.problems), err=True)
        raise typer.Exit(WRONG) from None


def check_installed() -> None:
    """Raise ArgumentError where the extra ``service`` is not installed."""
    from importlib.util import find_spec

    from hopsml import extras
    from hopsml.errors import ArgumentError

    for name in ("pydantic", "croniter"):
        if find_spec(name) is None:
            raise ArgumentError(f"job files need {name}, which is not installed: {extras.install('service')}")
