"""``hopsml job check|render|schema``: job files."""

from __future__ import annotations

import os
import shlex
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from hopsml.cli import jobs

if TYPE_CHECKING:
    from hopsml.service.spec import JobSpec

WRONG = 2  # exit status for a job file with mistakes
app = typer.Typer(no_args_is_help=True, help="Job files, and jobs of a service: submit, list, explain, change.")


class RenderTarget(str, Enum):
    """What can run a job."""

    SPARK_SUBMIT = "spark-submit"
    KUBERNETES = "kubernetes"


@app.command()
def check(job: Annotated[str, typer.Argument(help="a job file")]) -> None:
    """Say whether a job file is right, and what the job takes of a cluster, drivers counted. Exit status 2: it is not."""
    loaded = loaded_job(job)
    from hopsml.service import spec

    print(f"ok: {spec.summary(loaded)}")


@app.command()
def render(
    job: Annotated[str, typer.Argument(help="a job file")],
    to: Annotated[RenderTarget, typer.Option(help="for which engine")] = RenderTarget.SPARK_SUBMIT,
    profile: Annotated[
        str | None,
        typer.Option(help="a file of conf/; the job's, else $HOPSML_PROFILE, else yarn-cluster or kubernetes"),
    ] = None,
) -> None:
    """Print what the job is handed to an engine as, without secrets, and start nothing: a command or a manifest a task."""
    from pathlib import Path

    from hopsml import profiles, redact

    loaded, path = loaded_job(job), Path(job).absolute()
    if to is RenderTarget.KUBERNETES:
        import yaml

        from hopsml.service.render import kubernetes

        found = kubernetes.manifests(loaded, path, profiles.load(profile or "kubernetes"))
        print(yaml.safe_dump_all(found, sort_keys=False, allow_unicode=True, width=120), end="")
        return
    from hopsml.service.render import spark_submit

    chosen = profiles.load(profile or loaded.profile or os.environ.get("HOPSML_PROFILE") or "yarn-cluster")
    for planned in spark_submit.plans(loaded, path, chosen).values():
        print(shlex.join(redact.command(planned.command)))


@app.command()
def schema() -> None:
    """Print the JSON schema of job files, for editors."""
    _check_installed()
    from hopsml.service.spec import schema as schemas

    print(schemas.text())


def loaded_job(job: str) -> JobSpec:
    """The job of a file; its mistakes go to stderr, and the command ends with status 2."""
    _check_installed()
    from hopsml.errors import JobFileError
    from hopsml.service import spec

    try:
        return spec.load(job)
    except JobFileError as error:
        typer.echo("\n".join(error.problems), err=True)
        raise typer.Exit(WRONG) from None


def _check_installed() -> None:
    """Raise ArgumentError where the extra ``service`` is not installed."""
    from importlib.util import find_spec

    from hopsml import extras
    from hopsml.errors import ArgumentError

    for name in ("pydantic", "croniter"):
        if find_spec(name) is None:
            raise ArgumentError(f"job files need {name}, which is not installed: {extras.install('service')}")


jobs.register(app)
