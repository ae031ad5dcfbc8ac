"""``hopsml secrets``: store, list and delete secrets that a job service passes to a user's jobs."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Store, list and delete secrets of your jobs.")
Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Name in job files, such as s3-key; jobs read it from the variable S3_KEY."),
]


@app.command()
def put(
    name: Name,
    file: Annotated[Path | None, typer.Option(help="File with the value. Default: standard input.")] = None,
) -> None:
    """Store a value, which cannot be read back; a line end after it is removed.

    The value is read from a terminal without echo, from standard input, or from a file, not from the command line.
    """
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
    """Delete a secret; jobs that start later do not receive it."""
    from hopsml.client import Client

    Client.of_environment().remove_secret(name)
