"""``hopsml submit``: spark-submit with a profile's settings, followed to the application's end."""

from __future__ import annotations

import os
import shlex
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from hopsml.core.variables import SETTINGS

ONE_LETTER = 0.9  # similarity above which an unknown option counts as a misspelt one of hopsml, and not as the script's


class Command(TyperCommand):
    """Command that passes unknown options to the script, unless they resemble an option of ``hopsml submit``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; raise ArgumentError for a misspelt option before ``--``."""
        from hopsml.core import suggestions
        from hopsml.errors import ArgumentError

        ours = [name for parameter in self.params for name in parameter.opts if name.startswith("--")]
        words = [word.partition("=")[0] for word in (args[: args.index("--")] if "--" in args else args)]
        for option in words:
            known = not option.startswith("--") or option in (*ours, "--help")
            if meant := [] if known else suggestions.similar_names(option, ours, ONE_LETTER):
                raise ArgumentError(
                    f"there is no option {option}; did you mean {meant[0]}? If it is an option of the script, put it "
                    f"after --: hopsml submit train.py -- {option} ..."
                )
        return super().parse_args(ctx, args)


def submit(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="Script to run.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ARGUMENT",
            help="Arguments of the script: all options that are not listed below, and everything after --.",
        ),
    ] = None,
    profile: Annotated[
        str | None, typer.Option(help="Profile: name of a file in conf/. Default: $HOPSML_PROFILE, else yarn-cluster.")
    ] = None,
    num_workers: Annotated[int | None, typer.Option(help="Number of executors. Default: the profile's number.")] = None,
    conf: Annotated[
        list[str] | None,
        typer.Option(help="Spark setting, key=value; overrides the profile's; may be given more than once."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option(help="Print the spark-submit command without secrets, and start nothing.")
    ] = False,
    detach: Annotated[bool, typer.Option(help="Print the application's id when it is submitted, and return.")] = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            help="Seconds to wait until YARN's queue has room; then the application is ended. Default: no limit."
        ),
    ] = None,
    ship_environment: Annotated[
        str | None,
        typer.Option(
            help="Whether Python packages are shipped to YARN's nodes: never, auto, always, or the URL of an "
            "archive. Default: the profile's setting."
        ),
    ] = None,
    py_files: Annotated[
        str | None, typer.Option(help="Modules to ship, .py or .zip, separated by commas. Default: none.")
    ] = None,
    framework: Annotated[
        str | None,
        typer.Option(
            help="Run the script in every worker, as torchrun does: torch, jax or distributed. Default: the script is the "
            "driver."
        ),
    ] = None,
    torch_backend: Annotated[
        str, typer.Option(help="Process group of --framework torch: auto, hopsml, gloo or nccl.")
    ] = "auto",
    on_lost_contact: Annotated[
        str,
        typer.Option(
            help="What to do if YARN's web services refuse or do not answer after the submission: follow the "
            "application over Hadoop's RPC, without its output; kill it; or leave it running."
        ),
    ] = "follow",
    tag: Annotated[str | None, typer.Option(help="Additional tag of the application in YARN. Default: none.")] = None,
) -> None:
    """Run a script on the cluster of a profile, and follow it to its end; the exit status is 0 only if it succeeds.

    Ctrl-C or SIGTERM ends the application; a second one returns at once. Output of the driver goes to stdout, messages
    about the submission to stderr.
    """
    import contextlib
    import tempfile

    from hopsml import submission
    from hopsml.core import profiles, redact
    from hopsml.errors import ArgumentError, RunCancelled
    from hopsml.submission.spark_command import pop_hidden_settings

    chosen = profiles.load(profile or SETTINGS.profile or "yarn-cluster")
    settings = {**pop_hidden_settings(os.environ), **_settings(conf or [])}
    if timeout is not None and not timeout > 0:
        raise ArgumentError(f"--timeout {timeout:g}: the timeout must be greater than 0 seconds")
    if timeout is not None and detach:
        raise ArgumentError(
            "--timeout and --detach exclude each other, since with --detach the command does not wait; omit one of them"
        )
    if framework is None and torch_backend != "auto":
        raise ArgumentError(
            f"--torch-backend {torch_backend} needs --framework torch; a script that calls experiment.torch passes "
            "backend= to it"
        )
    if on_lost_contact not in list(submission.OnLostContact):
        raise ArgumentError(
            f"--on-lost-contact {on_lost_contact}: the value must be one of {', '.join(submission.OnLostContact)}"
        )
    lost_contact = submission.OnLostContact(on_lost_contact)
    if py_files:
        settings["spark.submit.pyFiles"] = py_files
    with submission.Interrupts() as interrupts, contextlib.ExitStack() as stack:
        try:
            if framework is not None:  # otherwise no folder, which kill -9 would leave behind
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="hopsml-submit-"))
                script = _driver(framework, script, folder, torch_backend)
            planned = submission.plan(
                chosen,
                script,
                arguments or [],
                num_workers=num_workers,
                conf=settings,
                tag=tag,
                ship_environment=ship_environment,
            )
            if dry_run:
                print(shlex.join(redact.command(planned.command)))
                return
            if detach:
                print(submission.start(planned, interrupts=interrupts))
                return
            status = submission.run(
                planned, waiting_timeout_s=timeout, interrupts=interrupts, on_lost_contact=lost_contact
            )
        except RunCancelled as cancelled:
            submission.to_stderr(str(cancelled))
            status = 128 + interrupts.last
    raise typer.Exit(status)


def _driver(framework: str, script: str, folder: str, torch_backend: str) -> str:
    """Write the driver script that runs ``script`` in every worker, and return its path."""
    from pathlib import Path

    from hopsml.errors import ArgumentError
    from hopsml.experiment import whole_script
    from hopsml.submission.script import parse_script

    if framework not in whole_script.VERBS:
        raise ArgumentError(f"--framework {framework}: the framework must be one of {', '.join(whole_script.VERBS)}")
    parse_script(script)  # reports an unreadable script before the submission
    return str(whole_script.write_driver(framework, Path(script), Path(folder), torch_backend))


def _settings(items: list[str]) -> dict[str, str]:
    from hopsml.errors import ArgumentError

    settings = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals:
            raise ArgumentError(f"--conf {item}: a Spark setting must be key=value")
        settings[key] = value
    return settings
