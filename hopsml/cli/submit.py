"""``hopsml submit SCRIPT``: spark-submit with a profile's settings."""

from __future__ import annotations

import shlex
import subprocess
from typing import Annotated

import typer


def submit(
    script: str,
    arguments: Annotated[list[str] | None, typer.Argument(help="what the script gets")] = None,
    profile: Annotated[str, typer.Option(help="a file of conf/")] = "yarn-cluster",
    num_workers: Annotated[int | None, typer.Option(help="executors; the profile's number by default")] = None,
    conf: Annotated[list[str] | None, typer.Option(help="a Spark setting, key=value; wins over the profile's")] = None,
    dry_run: Annotated[bool, typer.Option(help="print the command and do nothing")] = False,
) -> None:
    """Run a script on the cluster of a profile; the exit status is the application's."""
    from hopsml import profiles, submission
    from hopsml.errors import ArgumentError

    wishes = {}
    for item in conf or []:
        key, equals, value = item.partition("=")
        if not equals:
            raise ArgumentError(f"--conf {item}: must be key=value")
        wishes[key] = value
    line = submission.command(profiles.load(profile), script, arguments or [], num_workers=num_workers, conf=wishes)
    if dry_run:
        print(shlex.join(line))
        return
    raise typer.Exit(subprocess.call(line, env=submission.environment()))
