"""Command line of hopsml: ``hopsml NOUN VERB``; one module for each noun or command."""

import os
import signal
import sys
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Annotated

from hopsml import __version__
from hopsml.errors import HopsmlError

if TYPE_CHECKING:
    import typer

SERVE_NAME = "serve NAME"

# Renamed commands, without "hopsml": old spelling, which works for one release -> new spelling. Words behind the old
# spelling follow the new one unchanged.
RENAMED = {
    "cancel": "runs cancel",
    "evaluate": "runs evaluate",
    "follow": "runs follow",
    "logs": "runs logs",
    "metrics": "runs metrics",
    "profile": "runs profile",
    "rerun": "runs rerun",
    "status": "runs status",
    "tensorboard": "runs tensorboard",
    "tune-communication": "runs tune-communication",
    "runs diff": "runs compare",
    "job": "jobs",
    "model": "models",
    "schedule": "schedules",
    "secret": "secrets",
    "token": "tokens",
    "serving": "serve",
    SERVE_NAME: "serve run NAME",
}
# Short spellings that remain; they are translated as silently as an alias of a shell.
SHORT = {"resume": "runs resume"}


def main() -> None:
    """Run the command of ``sys.argv``; print an error of hopsml as one sentence, without a traceback."""
    try:
        app = application()
        app(_translated(sys.argv[1:]))
    except KeyboardInterrupt as interrupt:  # before a command runs, or of a run, which says how to continue it
        if interrupt.args:
            from hopsml.cli.terminal import print_plain

            print_plain(f"hopsml: {interrupt}", to_stderr=True)
        sys.exit(128 + signal.SIGINT)
    except HopsmlError as error:
        from hopsml.cli.terminal import print_plain

        print_plain(f"hopsml: {error}", to_stderr=True)
        sys.exit(1)
    except SystemExit as ended:
        if not isinstance(ended.__context__, BrokenPipeError) and _flush_stdout():
            raise
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # Python flushes stdout at exit, which would fail again
        os.close(nowhere)
        sys.exit(128 + signal.SIGPIPE)  # a reader such as ``head`` closed the pipe: no error of hopsml


def application() -> "typer.Typer":
    """Return the Typer application with all commands."""
    import typer

    from hopsml.cli import credentials, doctor, jobs, models, runs, serve, server, submit

    app = typer.Typer(
        no_args_is_help=True, help="Distributed training, search and serving on Spark and YARN, or on this machine."
    )
    version = typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")

    @app.callback()
    def whole(version: Annotated[bool, version] = False) -> None:
        pass

    app.command(cls=submit.Command, context_settings={"ignore_unknown_options": True})(submit.submit)
    app.add_typer(runs.app, name="runs")
    app.add_typer(jobs.app, name="jobs")
    app.add_typer(jobs.schedules, name="schedules")
    app.add_typer(credentials.secrets, name="secrets")
    app.add_typer(credentials.tokens, name="tokens")
    app.add_typer(models.app, name="models")
    app.add_typer(serve.app, name="serve")
    for command in (
        server.server,
        credentials.audit,
        server.ui,
        doctor.profiles,
        doctor.doctor,
        doctor.class_data,
    ):
        app.command()(command)
    return app


def _translated(words: list[str]) -> list[str]:
    """Translate old spellings, and name the new one on stderr."""
    import typer

    from hopsml.cli import serve

    names = {command.name or getattr(command.callback, "__name__", "") for command in serve.app.registered_commands}
    current, notice = current_words(words, names)
    if notice:
        typer.echo(notice, err=True)
    return current


def current_words(words: Sequence[str], serve_commands: Collection[str]) -> tuple[list[str], str]:
    """Translate the words of a command line to the present spelling.

    Args:
        words: the command line without ``hopsml``.
        serve_commands: names of the commands below ``hopsml serve``. Any other word in their place is the name of a
            serving, as in the old spelling ``hopsml serve NAME``; a serving with the name of a command needs
            ``hopsml serve run``.

    Returns:
        The words to run, and the line for stderr, which is empty if the words need no translation.
    """
    if words[:1] and words[0] in SHORT:
        return [*SHORT[words[0]].split(), *words[1:]], ""
    for old, new in RENAMED.items():
        parts = old.split()
        if old != SERVE_NAME and list(words[: len(parts)]) == parts:
            return [*new.split(), *words[len(parts) :]], _notice(old)
    if words[:1] == ["serve"] and len(words) > 1 and words[1] not in {*serve_commands, "--help"}:
        return ["serve", "run", *words[1:]], _notice(SERVE_NAME)
    return list(words), ""


def _notice(old: str) -> str:
    return f"hopsml: 'hopsml {old}' is now 'hopsml {RENAMED[old]}'"


def _print_version(is_given: bool) -> None:
    if is_given:
        print(f"hopsml {__version__}")
        sys.exit(0)


def _flush_stdout() -> bool:
    """Flush standard output; return False if its reader has closed the pipe."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        return False
    return True
