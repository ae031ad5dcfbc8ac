"""``hopsml job check|render|schema``: job files."""

from __future__ import annotations

import os
import shlex
from enum import Enum
from typing import Annotated

import typer

from hopsml.cli import jobs
from hopsml.cli.job_files import check_installed, loaded_job

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
    check_installed()
    from hopsml.service.spec import schema as schemas

    print(schemas.text())


jobs.register(app)
