"""``hopsml runs tensorboard``: TensorBoard for the events of a run, on any store."""

from __future__ import annotations

from typing import Annotated

import typer

from hopsml.cli.options import RunArgument


def tensorboard(
    run: RunArgument,
    port: Annotated[int, typer.Option(help="Port to listen on; 0 selects a free port.")] = 6006,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
) -> None:
    """Serve TensorBoard for a run until Ctrl-C.

    Events on remote storage are copied to a temporary folder, and updated every few seconds.
    """
    from hopsml.core import settings
    from hopsml.notebook import tensorboard_server
    from hopsml.storage.run_dir import find

    events = tensorboard_server.events_of(find(run, settings.project_url()))
    with tensorboard_server.running(events, host=host, port=port) as server:
        tensorboard_server.keep(server, f"TensorBoard: http://{host}:{server.port()}/ (Ctrl-C ends it)")
