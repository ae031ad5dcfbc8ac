"""The command line: ``hopsml COMMAND``; one file a command."""

from __future__ import annotations

import sys

from hopsml.errors import HopsmlError


def main() -> None:
    """Entry point; errors of ours are one sentence, without a traceback."""
    import typer

    from hopsml.cli import cancel, class_data, doctor, follow, logs, metrics, profiles, rerun, runs, status, submit
    from hopsml.cli import tensorboard as board

    app = typer.Typer(
        no_args_is_help=True, add_completion=False, help="hopsml: distributed training on Spark executors."
    )
    commands = (
        cancel.cancel,
        class_data.class_data,
        doctor.doctor,
        follow.follow,
        logs.logs,
        metrics.metrics,
        profiles.profiles,
        rerun.rerun,
        status.status,
        board.tensorboard,
    )
    for command in commands:
        app.command()(command)
    app.command(cls=submit.Command, context_settings={"ignore_unknown_options": True})(submit.submit)
    app.add_typer(runs.app, name="runs")
    try:
        app()
    except HopsmlError as error:
        print(f"hopsml: {error}", file=sys.stderr)
        sys.exit(1)
