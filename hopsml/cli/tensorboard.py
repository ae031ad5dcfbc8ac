"""``hopsml tensorboard RUN``: TensorBoard over a run's events, wherever they lie."""

from __future__ import annotations


def tensorboard(run: str, port: int = 6006, host: str = "127.0.0.1") -> None:
    """Serve TensorBoard for a run until Ctrl-C; RUN is its URL, its path or its id.

    Events on remote storage are copied to a temporary folder and refreshed every few seconds while it runs.
    """
    from hopsml import settings
    from hopsml.notebook import tensorboard_server
    from hopsml.storage.run_dir import find

    events = tensorboard_server.events_of(find(run, settings.project_url()))
    with tensorboard_server.running(events, host=host, port=port) as server:
        tensorboard_server.keep(server, f"TensorBoard: http://{host}:{server.port()}/ (Ctrl-C ends it)")
