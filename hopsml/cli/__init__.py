"""The command line: ``hopsml COMMAND``; one file a command."""

from __future__ import annotations

import sys

from hopsml.errors import HopsmlError


def main() -> None:
    """Entry point; errors of ours are one sentence, without a traceback."""
    import typer

    from hopsml.cli import class_data, doctor, follow, logs, profiles, rerun, runs, submit, tensorboard

    app = typer.Typer(
        no_args_is_help=True, add_completion=False, help="hopsml: distributed training on Spark executors."
    )
    commands = (
        class_data.class_data,
        doctor.doctor,
        follow.follow,
        logs.logs,
        profiles.profiles,
        rerun.rerun,
        submit.submit,
        tensorboard.tensorboard,
    )
    for command in commands:
        app.command()(command)
    app.add_typer(runs.app, name="runs")
    try:
        app()
    except HopsmlError as error:
        print(f"hopsml: {error}", file=sys.stderr)
        sys.exit(1)
