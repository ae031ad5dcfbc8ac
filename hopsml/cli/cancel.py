"""``hopsml runs cancel``: end a run from any machine that can write to its directory."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from hopsml.cli.options import RunArgument

POLL_S = 0.25


def cancel(
    run: RunArgument,
    reason: Annotated[str, typer.Option(help="Reason, stored with the run.")] = "cancelled from the command line",
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the end of the run.")] = 60.0,
) -> None:
    """End a run, a search or a launch; the exit status is 0 if it ends as CANCELLED.

    The request is stored in the run directory, which the driver reads every few seconds, on any machine.
    """
    from hopsml.core import settings
    from hopsml.core.states import Lifecycle
    from hopsml.errors import ArgumentError
    from hopsml.storage import cancel_request
    from hopsml.storage.run_dir import find
    from hopsml.tracking import catalog

    directory = find(run, settings.project_url())
    stored = catalog.read(directory, brief=True)
    if stored.status is None and stored.state == Lifecycle.LOST:
        raise ArgumentError(
            f"run {directory.run_id} is LOST: its driver has ended, and its workers with it; there is nothing to cancel"
        )
    if stored.run.get("verb") == "recorded" and stored.status is None:
        raise ArgumentError(
            f"run {directory.run_id} has no workers, it runs in its driver on {stored.run.get('driver')}: end that program"
        )
    if stored.status is None:
        cancel_request.write(directory, reason)
    deadline = time.monotonic() + timeout
    while (ended := directory.read_status()) is None:
        if time.monotonic() > deadline:
            raise ArgumentError(
                f"run {directory.run_id} has not ended within {timeout:g} s of the cancel request. Check that its driver "
                "runs, or on YARN end the whole application: hopsml runs follow APPLICATION --end"
            )
        time.sleep(POLL_S)
    state = ended.get("state")
    print(f"{directory.run_id}: {state}" + ("" if stored.status is None else " already"))
    raise typer.Exit(0 if state == Lifecycle.CANCELLED else 1)
