"""``hopsml jobs`` and ``hopsml schedules``: job files, jobs of a job service, and schedules that start them."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Annotated

import typer

from hopsml.cli import service_jobs
from hopsml.cli.service_jobs import WRONG, JobFile, check_installed, load_job_or_exit
from hopsml.cli.terminal import print_plain
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
    loaded = load_job_or_exit(job)
    from hopsml.errors import ArgumentError
    from hopsml.service import code, spec, workspaces
    from hopsml.service.render import spark_submit

    if not spark_submit.is_git_url(loaded.code):  # `hopsml jobs submit` fetches it, and the service checks it
        try:
            with code.local_code(loaded, Path(job).absolute()) as folder:
                problems = workspaces.missing_in_folder(folder, loaded)
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

    loaded, path = load_job_or_exit(job), Path(job).absolute()
    if to is RenderTarget.KUBERNETES:
        import yaml

        from hopsml.service.render import kubernetes

        found = kubernetes.manifests(loaded, path, profiles.load(profile or "kubernetes"))
        print(yaml.safe_dump_all(found, sort_keys=False, allow_unicode=True, width=120), end="")
        return
    from hopsml.service.render import spark_submit

    chosen = profiles.load(profile or loaded.profile or SETTINGS.profile or "yarn-cluster")
    for planned in spark_submit.submission_plans(loaded, path, chosen).values():
        print(shlex.join(redact.command(planned.command)))


@app.command()
def schema() -> None:
    """Print the JSON schema of job files, for editors."""
    check_installed()
    from hopsml.service.spec import loading

    print(loading.schema_text())


service_jobs.register(app)


schedules = typer.Typer(
    no_args_is_help=True,
    help="List, inspect, pause, resume, trigger and delete schedules; `hopsml jobs submit` creates them.",
)
Schedule = Annotated[str, typer.Argument(metavar="ID", help="Id of the schedule: NAME-NUMBER, or the number alone.")]


@schedules.command("ls")
def list_schedules() -> None:
    """List schedules with their next time, oldest first."""
    from hopsml.client import Client

    for one in Client.of_environment().schedules():
        planned = _next_time(one.is_paused, one.planned_s)
        print_plain(f"{one.id}  {one.owner}  {one.schedule} {one.zone}  {planned}  {one.note}".rstrip())


@schedules.command("show")
def show_schedule(schedule: Schedule) -> None:
    """Print a schedule's next time, its last job with the outcome, and its job file."""
    from hopsml.client import Client

    one = Client.of_environment().schedule(schedule)
    print_plain(
        f"{one.id}: {one.schedule} {one.zone}, overlap {one.overlap}; {_next_time(one.is_paused, one.planned_s)}"
    )
    print_plain(f"last job: {one.last_job or 'none yet'}" + (f"; {one.note}" if one.note else ""))
    print_plain("\n" + one.spec.rstrip())


@schedules.command("pause")
def pause_schedule(schedule: Schedule) -> None:
    """Start no jobs until the schedule is resumed; times that pass are skipped."""
    from hopsml.client import Client

    Client.of_environment().change_schedule(schedule, "pause")


@schedules.command("resume")
def resume_schedule(schedule: Schedule) -> None:
    """Resume a paused schedule at its next time."""
    from hopsml.client import Client

    Client.of_environment().change_schedule(schedule, "resume")


@schedules.command("trigger")
def trigger_schedule(schedule: Schedule) -> None:
    """Start the job of a schedule now, in addition to its times, and print the job's id."""
    from hopsml.client import Client

    print_plain(Client.of_environment().trigger_schedule(schedule).id)


@schedules.command("rm")
def delete_schedule(schedule: Schedule) -> None:
    """Delete a schedule; its jobs remain."""
    from hopsml.client import Client

    Client.of_environment().remove_schedule(schedule)


def _next_time(is_paused: bool, planned_s: float) -> str:
    return "paused" if is_paused else f"next {time.strftime('%Y-%m-%d %H:%M', time.localtime(planned_s))}"
