"""``hopsml.tracking.register_model``: what a run exported, as a version in MLflow's model registry."""

from __future__ import annotations

import os
from typing import Any

from hopsml import settings
from hopsml.errors import ArgumentError, PathNotFound
from hopsml.storage import filesystem
from hopsml.storage.run_dir import find


def register_model(run: Any, name: str) -> str:
    """Make a version of the registered model ``name``, whose source is the URL of the run's export directory.

    ``run``: a result, a handle, an id, a path or a URL. Nothing is copied. Asked twice, the version stays the same one.
    Returns its number. Waits for MLflow's server, as long as MLflow's own settings say.

    Raises:
        ArgumentError: there is no such run, it exported nothing, or no tracking URI is known.
        MlflowMissing, MlflowAway, MlflowRefused: (HopsmlError) the package, the server, or its consent is missing. MLflow
            takes no source on the local disk.
    """
    from hopsml.tracking.mlflow import order, publish
    from hopsml.tracking.mlflow.store import Store

    directory = find(run, settings.project_url())
    recorded = order.read(directory)
    uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    if recorded is not None:
        uri = order.with_uri(directory, recorded, uri).tracking_uri
    if not uri:
        raise ArgumentError(f"run {directory.run_id} was not tracked by MLflow; set MLFLOW_TRACKING_URI to its server")
    try:
        entries = filesystem.for_url(directory.export).list_dir(directory.export)
    except PathNotFound:
        entries = []
    if not entries:
        raise ArgumentError(
            f"run {directory.run_id} exported nothing: {directory.export} is empty; export a model in it"
        )
    return publish.register(Store(uri), name, directory, recorded.run_id if recorded is not None else "")
