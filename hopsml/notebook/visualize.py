"""TensorBoard over a run that has been, wherever it lies: in the cell of a notebook, else at an address until Ctrl-C."""

from __future__ import annotations

from hopsml import settings
from hopsml.notebook import frontend, magics, tensorboard_server
from hopsml.storage.run_dir import RunDir, find


def visualize(logdir: str) -> None:
    """Show a run by its directory, log directory or id. Raises ArgumentError for what is no run."""
    directory = run_of(logdir)
    if frontend.is_live():
        magics.tensorboard_run(directory.url)
        return
    with tensorboard_server.running(tensorboard_server.events_of(directory)) as server:
        address = f"http://127.0.0.1:{server.port()}/"
        tensorboard_server.keep(server, f"TensorBoard of {directory.run_id}: {address} (Ctrl-C ends it)")


def run_of(logdir: str) -> RunDir:
    """The run whose directory, log directory or id this is."""
    return find(logdir.rstrip("/").removesuffix("/events"), settings.project_url())
