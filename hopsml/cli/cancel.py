"""``hopsml cancel RUN``: end a run from anywhere that may write to its directory."""

from __future__ import annotations

import time
from typing import Annotated

import typer

POLL_S = 0.25


def cancel(
    run: str,
    reason: Annotated[str, typer.Option(help="for the record")] = "cancelled from the command line",
    timeout: Annotated[float, typer.Option(help="seconds to wait for the end")] = 60.0,
) -> None:
    """End a run, a search or a launch's run; RUN is its URL, its path or its id. Exit status 0 once it is CANCELLED.

    The wish is left in the run directory, where the driver looks for it every few seconds, wherever it runs.
    """
    from hopsml import settings
    from hopsml.errors import ArgumentError
    from hopsml.states import Lifecycle
    from hopsml.storage import cancel_request
    from hopsml.storage.run_dir import find
    from hopsml.tracking import catalog

    directory = find(run, settings.project_url())
    stored = catalog.read(directory, brief=True)
    if stored.status is None and stored.state == Lifecycle.LOST:
        raise ArgumentError(
            f"run {directory.run_id}: its driver is gone, and its workers with it; nothing is left to end"
        )
    if stored.run.get("verb") == "recorded" and stored.status is None:
        raise ArgumentError(
            f"run {directory.run_id} is work of its driver itself, {stored.run.get('driver')}: end that program"
        )
    if stored.status is None:
        cancel_request.write(directory, reason)
    deadline = time.monotonic() + timeout
    while (ended := directory.read_status()) is None:
        if time.monotonic() > deadline:
            raise ArgumentError(
                f"run {directory.run_id} was asked to end, and its driver has not ended it within {timeout:g} s; on YARN "
                "`hopsml follow APPLICATION --end` ends the whole application"
            )
        time.sleep(POLL_S)
    state = ended.get("state")
    print(f"{directory.run_id}: {state}" + ("" if stored.status is None else " already"))
    raise typer.Exit(0 if state == Lifecycle.CANCELLED else 1)
