"""``hopsml schedules``: list, inspect, pause, resume, trigger and delete schedules of a job service."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from hopsml.cli.terminal import print_plain

app = typer.Typer(
    no_args_is_help=True,
    help="List, inspect, pause, resume, trigger and delete schedules; `hopsml jobs submit` creates them.",
)
Schedule = Annotated[str, typer.Argument(metavar="ID", help="Id of the schedule: NAME-NUMBER, or the number alone.")]


@app.command()
def ls() -> None:
    """List schedules with their next time, oldest first."""
    from hopsml.client import Client

    for one in Client.of_environment().schedules():
        print_plain(
            f"{one.id}  {one.owner}  {one.schedule} {one.zone}  {_next(one.is_paused, one.planned_s)}  {one.note}".rstrip()
        )


@app.command()
def show(schedule: Schedule) -> None:
    """Print a schedule's next time, its last job with the outcome, and its job file."""
    from hopsml.client import Client

    one = Client.of_environment().schedule(schedule)
    print_plain(f"{one.id}: {one.schedule} {one.zone}, overlap {one.overlap}; {_next(one.is_paused, one.planned_s)}")
    print_plain(f"last job: {one.last_job or 'none yet'}" + (f"; {one.note}" if one.note else ""))
    print_plain("\n" + one.spec.rstrip())


@app.command()
def pause(schedule: Schedule) -> None:
    """Start no jobs until the schedule is resumed; times that pass are skipped."""
    from hopsml.client import Client

    Client.of_environment().change_schedule(schedule, "pause")


@app.command()
def resume(schedule: Schedule) -> None:
    """Resume a paused schedule at its next time."""
    from hopsml.client import Client

    Client.of_environment().change_schedule(schedule, "resume")


@app.command()
def trigger(schedule: Schedule) -> None:
    """Start the job of a schedule now, in addition to its times, and print the job's id."""
    from hopsml.client import Client

    print_plain(Client.of_environment().trigger_schedule(schedule).id)


@app.command()
def rm(schedule: Schedule) -> None:
    """Delete a schedule; its jobs remain."""
    from hopsml.client import Client

    Client.of_environment().remove_schedule(schedule)


def _next(is_paused: bool, planned_s: float) -> str:
    return "paused" if is_paused else f"next {time.strftime('%Y-%m-%d %H:%M', time.localtime(planned_s))}"
