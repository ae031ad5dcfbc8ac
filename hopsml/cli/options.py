"""Arguments and options that several commands share, with their help texts."""

from __future__ import annotations

from typing import Annotated

import typer

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="URL, path or id of the run.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one line of JSON.")]
ProfileOption = Annotated[
    str | None, typer.Option(help="Profile: name of a file in conf/. Default: $HOPSML_PROFILE, else local.")
]
ProjectUrl = Annotated[
    str, typer.Option(help="URL of the project. Default: $HOPSML_PROJECT_URL, else HDFS if configured, else ./.hopsml.")
]
