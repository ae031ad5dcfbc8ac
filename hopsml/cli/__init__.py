"""The command line: ``hopsml COMMAND``; one file a command."""

import os
import signal
import sys
from typing import TYPE_CHECKING, Annotated

from hopsml import __version__
from hopsml.errors import HopsmlError

if TYPE_CHECKING:
    import typer


def main() -> None:
    """Entry point of ``hopsml``; an error of ours is printed as one sentence, without a traceback."""
    try:
        _all_commands()()
    except KeyboardInterrupt:  # before a command has begun, which looks after that itself
        sys.exit(128 + signal.SIGINT)
    except HopsmlError as error:
        from hopsml.cli.terminal_text import print_plain

        print_plain(f"hopsml: {error}", to_stderr=True)
        sys.exit(1)
    except SystemExit as ended:
        if not isinstance(ended.__context__, BrokenPipeError) and _has_readers():
            raise
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # for what is still to be printed
        os.close(nowhere)
        sys.exit(128 + signal.SIGPIPE)  # whoever read has seen enough, as ``| head`` has: no error of ours


def _all_commands() -> "typer.Typer":
    import typer

    from hopsml.cli import (
        audit,
        cancel,
        class_data,
        doctor,
        evaluate,
        follow,
        job,
        logs,
        metrics,
        model,
        profile,
        profiles,
        rerun,
        runs,
        schedule,
        secret,
        serve,
        server,
        serving,
        status,
        submit,
        token,
        ui,
    )
    from hopsml.cli import tensorboard as board
    from hopsml.cli import tune_communication as tuning

    app = typer.Typer(
        no_args_is_help=True, add_completion=False, help="hopsml: distributed training on Spark executors."
    )
    commands = (
        audit.audit,
        cancel.cancel,
        class_data.class_data,
        doctor.doctor,
        evaluate.evaluate,
        follow.follow,
        logs.logs,
        metrics.metrics,
        profile.profile,
        profiles.profiles,
        rerun.rerun,
        serve.serve,
        server.server,
        status.status,
        board.tensorboard,
        tuning.tune_communication,
        ui.ui,
    )
    version = typer.Option("--version", callback=_tell_version, is_eager=True, help="Print the version and end.")

    @app.callback()
    def whole(version: Annotated[bool, version] = False) -> None:
        pass

    for command in commands:
        app.command()(command)
    app.command(cls=submit.Command, context_settings={"ignore_unknown_options": True})(submit.submit)
    app.add_typer(runs.app, name="runs")
    app.add_typer(job.app, name="job")
    app.add_typer(job.app, name="jobs", hidden=True)
    app.add_typer(model.app, name="model")
    app.add_typer(schedule.app, name="schedule")
    app.add_typer(secret.app, name="secret")
    app.add_typer(serving.app, name="serving")
    app.add_typer(token.app, name="token")
    return app


def _tell_version(asked: bool) -> None:
    if asked:
        print(f"hopsml {__version__}")
        sys.exit(0)


def _has_readers() -> bool:
    """Whether standard output was written completely: False if its reader has gone away."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        return False
    return True
