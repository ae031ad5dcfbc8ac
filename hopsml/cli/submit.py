"""``hopsml submit SCRIPT``: spark-submit with a profile's settings, followed to the application's end."""

from __future__ import annotations

import os
import shlex
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

ONE_LETTER = 0.9  # an option so much like one of ours is misspelt rather than the script's


class Command(TyperCommand):
    """A click command that passes unknown options to the script, unless they look like misspelt ones of its own."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Raise ArgumentError for a misspelt option, naming it; what follows ``--`` is the script's in any case."""
        from hopsml import suggestions
        from hopsml.errors import ArgumentError

        ours = [name for parameter in self.params for name in parameter.opts if name.startswith("--")]
        words = [word.partition("=")[0] for word in (args[: args.index("--")] if "--" in args else args)]
        for option in words:
            known = not option.startswith("--") or option in (*ours, "--help")
            if meant := [] if known else suggestions.similar(option, ours, ONE_LETTER):
                raise ArgumentError(
                    f"{option}: did you mean {meant[0]}? What the script shall get under this name stands behind --, as "
                    f"in: hopsml submit train.py -- {option} ..."
                )
        return super().parse_args(ctx, args)


def submit(
    script: str,
    arguments: Annotated[
        list[str] | None, typer.Argument(help="what the script gets: every option that is none of these, all behind --")
    ] = None,
    profile: Annotated[str | None, typer.Option(help="a file of conf/; $HOPSML_PROFILE, else yarn-cluster")] = None,
    num_workers: Annotated[int | None, typer.Option(help="executors; the profile's number by default")] = None,
    conf: Annotated[list[str] | None, typer.Option(help="a Spark setting, key=value; wins over the profile's")] = None,
    dry_run: Annotated[bool, typer.Option(help="print the command, without secrets, and do nothing")] = False,
    detach: Annotated[bool, typer.Option(help="print the application's id and leave it to itself")] = False,
    timeout: Annotated[
        float | None, typer.Option(help="seconds to wait for room in YARN's queue; for ever else")
    ] = None,
    ship_environment: Annotated[
        str | None, typer.Option(help="packages for YARN's nodes: never, auto, always, or the URL of an archive")
    ] = None,
    py_files: Annotated[str | None, typer.Option(help="modules to ship, .py or .zip, comma-separated")] = None,
    framework: Annotated[
        str | None,
        typer.Option(
            help="torch, jax or distributed: the script is a worker's, as for torchrun, and runs on every one"
        ),
    ] = None,
    torch_backend: Annotated[
        str, typer.Option(help="of --framework torch, what its process group is: auto, hopsml, gloo or nccl")
    ] = "auto",
    tag: Annotated[str | None, typer.Option(help="a tag by which YARN finds the application (yarn.tags)")] = None,
) -> None:
    """Run a script on the cluster of a profile and follow it to its end; the exit status is 0 only if it succeeded.

    Ctrl-C (or SIGTERM) ends the application, a second one leaves at once. What the driver prints goes to stdout, all
    about the submission to stderr.
    """
    import contextlib
    import tempfile

    from hopsml import profiles, redact, submission
    from hopsml.errors import ArgumentError, RunCancelled
    from hopsml.submission.hidden import from_environment

    chosen = profiles.load(profile or os.environ.get("HOPSML_PROFILE") or "yarn-cluster")
    wishes = {**from_environment(os.environ), **_settings(conf or [])}
    if timeout is not None and not timeout > 0:
        raise ArgumentError(f"--timeout {timeout:g}: it must be above 0 seconds")
    if timeout is not None and detach:
        raise ArgumentError("--timeout with --detach: nobody follows the application then; leave one of the two out")
    if framework is None and torch_backend != "auto":
        raise ArgumentError(
            f"--torch-backend {torch_backend} without --framework torch: a script that calls experiment.torch says it there"
        )
    if py_files:
        wishes["spark.submit.pyFiles"] = py_files
    with submission.Interrupts() as interrupts, contextlib.ExitStack() as stack:
        try:
            if framework is not None:  # without, no folder is there to be left by kill -9
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="hopsml-submit-"))
                script = _driver(framework, script, folder, torch_backend)
            planned = submission.plan(
                chosen,
                script,
                arguments or [],
                num_workers=num_workers,
                conf=wishes,
                tag=tag,
                ship_environment=ship_environment,
            )
            if dry_run:
                print(shlex.join(redact.command(planned.command)))
                return
            if detach:
                print(submission.start(planned, interrupts=interrupts))
                return
            status = submission.run(planned, waiting_timeout_s=timeout, interrupts=interrupts)
        except RunCancelled as cancelled:
            submission.to_stderr(str(cancelled))
            status = 128 + interrupts.last
    raise typer.Exit(status)


def _driver(framework: str, script: str, folder: str, torch_backend: str) -> str:
    """What runs the script on every worker, which is submitted in its place."""
    from pathlib import Path

    from hopsml.errors import ArgumentError
    from hopsml.experiment import whole_script
    from hopsml.submission.script import read

    if framework not in whole_script.VERBS:
        raise ArgumentError(f"--framework {framework}: it must be one of {', '.join(whole_script.VERBS)}")
    read(script)  # a mistake in it is said now
    return str(whole_script.driver_of(framework, Path(script), Path(folder), torch_backend))


def _settings(items: list[str]) -> dict[str, str]:
    from hopsml.errors import ArgumentError

    wishes = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals:
            raise ArgumentError(f"--conf {item}: must be key=value")
        wishes[key] = value
    return wishes
