"""``hopsml secret put|ls|rm``: secrets that a job service keeps for its user's jobs."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Secrets that a job service keeps for your jobs: put, list, remove.")
Name = Annotated[str, typer.Argument(help="as job files name it: s3-key, which jobs find as S3_KEY")]


@app.command()
def put(
    name: Name,
    file: Annotated[Path | None, typer.Option(help="that holds the value; standard input else")] = None,
) -> None:
    """Keep a value, which nobody can read again. A line end behind it is left out; it never stands on a command line."""
    from hopsml.client import Client

    if file is None and sys.stdin.isatty():
        value = typer.prompt(f"value of {name}", hide_input=True)
    else:
        value = file.read_text() if file is not None else sys.stdin.read()
    Client.of_environment().put_secret(name, value.removesuffix("\n").removesuffix("\r"))


@app.command()
def ls() -> None:
    """List your secrets, without their values."""
    from hopsml.client import Client

    for one in Client.of_environment().secrets():
        print(f"{one.name}  {time.strftime('%Y-%m-%d %H:%M', time.localtime(one.stored_s))}")


@app.command()
def rm(name: Name) -> None:
    """Forget one; jobs that are started from now on do not get it."""
    from hopsml.client import Client

    Client.of_environment().remove_secret(name)
