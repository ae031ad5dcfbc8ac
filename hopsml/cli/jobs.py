"""``hopsml jobs``: check and render job files, and submit, list, explain and change jobs of a service."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from hopsml.cli import service_jobs
from hopsml.cli.service_jobs import WRONG, JobFile, check_installed, loaded_job
from hopsml.core.newer_python import StrEnum
from hopsml.core.variables import SETTINGS

app = typer.Typer(
    no_args_is_help=True, help="Check job files; submit, list, explain and change jobs of the job service."
)


class RenderTarget(StrEnum):
    """Target of a rendered job file."""

    SPARK_SUBMIT = "spark-submit"
    KUBERNETES = "kubernetes"


@app.command()
def check(job: JobFile) -> None:
    """Check a job file and the code that it names, and print the slots that the job needs, including drivers.

    The exit status is 2 if the file has errors; each is printed with its line.
    """
    loaded = loaded_job(job)
    from hopsml.errors import ArgumentError
    from hopsml.service import spec, workspaces
    from hopsml.service.render import spark_submit

    if spark_submit.is_folder(loaded.workspace):
        try:
            problems = workspaces.missing_in(spark_submit.workspace_folder(loaded, Path(job).absolute()), loaded)
        except ArgumentError as error:
            problems = [str(error)]
        if problems:
            typer.echo("\n".join(f"{job}: {problem}" for problem in problems), err=True)
            raise typer.Exit(WRONG)
    print(f"ok: {spec.summary(loaded)}")


@app.command()
def render(
    job: JobFile,
    to: Annotated[
        RenderTarget, typer.Option(help="Format to print: a spark-submit command, or a Kubernetes manifest.")
    ] = RenderTarget.SPARK_SUBMIT,
    profile: Annotated[
        str | None,
        typer.Option(
            help="Profile: name of a file in conf/. Default: the job's, else $HOPSML_PROFILE, else yarn-cluster; for "
            "kubernetes, kubernetes."
        ),
    ] = None,
) -> None:
    """Print the spark-submit command or the Kubernetes manifest of each task, without secrets; start nothing."""
    from hopsml.core import profiles, redact

    loaded, path = loaded_job(job), Path(job).absolute()
    if to is RenderTarget.KUBERNETES:
        import yaml

        from hopsml.service.render import kubernetes

        found = kubernetes.manifests(loaded, path, profiles.load(profile or "kubernetes"))
        print(yaml.safe_dump_all(found, sort_keys=False, allow_unicode=True, width=120), end="")
        return
    from hopsml.service.render import spark_submit

    chosen = profiles.load(profile or loaded.profile or SETTINGS.profile or "yarn-cluster")
    for planned in spark_submit.plans(loaded, path, chosen).values():
        print(shlex.join(redact.command(planned.command)))


@app.command()
def schema() -> None:
    """Print the JSON schema of job files, for editors."""
    check_installed()
    from hopsml.service.spec import loading

    print(loading.schema_text())


service_jobs.register(app)
