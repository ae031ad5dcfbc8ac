"""The command line: ``hopsml COMMAND``; one file a command."""

from __future__ import annotations

import sys

from hopsml.errors import HopsmlError


def main() -> None:
    """Entry point; errors of ours are one sentence, without a traceback."""
    import typer

    from hopsml.cli import logs, profiles, submit, tensorboard

    app = typer.Typer(
        no_args_is_help=True, add_completion=False, help="hopsml: distributed training on Spark executors."
    )
    for command in (logs.logs, profiles.profiles, submit.submit, tensorboard.tensorboard):
        app.command()(command)
    try:
        app()
    except HopsmlError as error:
        print(f"hopsml: {error}", file=sys.stderr)
        sys.exit(1)
