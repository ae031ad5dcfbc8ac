"""``hopsml runs sync``: sends to MLflow the runs that its server has missed, from their directories."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from hopsml.tracking import strict_json

CALL_TIMEOUT_S = 30.0  # a person waits, and can interrupt


def sync(
    runs: Annotated[list[str] | None, typer.Argument(help="URL, path or id; all that MLflow has missed else")] = None,
    project: Annotated[str, typer.Option(help="URL of a project; $HOPSML_PROJECT_URL and its defaults else")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="for scripts")] = False,
) -> None:
    """Send runs to MLflow that its server has missed. Exit status 1 if some could still not be sent."""
    from hopsml import settings
    from hopsml.errors import HopsmlError
    from hopsml.storage.run_dir import RunDir, find
    from hopsml.tracking.mlflow import order, sender, store

    url = project or settings.project_url()
    directories = [find(run, url) for run in runs or []] or [RunDir(run) for run in order.pending(url)]
    if directories:
        store.limit_waiting(CALL_TIMEOUT_S)
    stores: dict[str, store.Store] = {}

    def opened(uri: str) -> store.Store:
        if uri not in stores:
            stores[uri] = store.Store(uri)
        return stores[uri]

    rows = []
    for directory in directories:
        try:
            state, notes = sender.send_recorded(
                directory, opened, os.environ.get("MLFLOW_TRACKING_URI", ""), refused_too=True
            )
        except HopsmlError as error:
            state, notes = order.PENDING, [str(error)]
        rows.append({"run": directory.run_id, "state": state, "notes": notes})
        if not as_json:
            print("  ".join([directory.run_id, state, *notes]), flush=True)
    if as_json:
        print(strict_json.dumps(rows))
    elif not rows:
        print(f"nothing of {url} waits to be sent to MLflow")
    if any(row["state"] in (order.PENDING, order.REFUSED) for row in rows):
        raise typer.Exit(1)
