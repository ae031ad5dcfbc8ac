"""``hopsml.tracking.register_model``: registers a run's export in MLflow's model registry."""

from __future__ import annotations

import os
from typing import Any

from hopsml.core import settings
from hopsml.errors import ArgumentError, PathNotFound
from hopsml.storage import filesystem
from hopsml.tracking import named_runs


def register_model(run: Any, name: str) -> str:
    """Register a run's export directory as a version of the model ``name``, and return the version's number.

    Nothing is copied: the version's source is the URL of the directory. A repeated call returns the same version. Waits
    for MLflow's server, as long as MLflow's own settings allow.

    Args:
        run: a result, a handle, an id, a path or a URL.
        name: name of the registered model.

    Raises:
        ArgumentError: there is no such run, it exported nothing, or no tracking URI is known.
        MlflowMissing: (HopsmlError) the package ``mlflow`` is not installed.
        MlflowAway: (HopsmlError) the server cannot be reached.
        MlflowRefused: (HopsmlError) the server rejected the request; MLflow accepts no source on the local disk.
    """
    from hopsml.tracking.mlflow import order, publish
    from hopsml.tracking.mlflow.store import Store

    directory = named_runs.find(run, settings.project_url())
    recorded = order.read(directory)
    uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    if recorded is not None:
        uri = order.with_trusted_uri(directory, recorded, uri).tracking_uri
    if not uri:
        raise ArgumentError(f"run {directory.run_id} was not tracked by MLflow; set MLFLOW_TRACKING_URI to its server")
    try:
        entries = filesystem.for_url(directory.export).list_dir(directory.export)
    except PathNotFound:
        entries = []
    if not entries:
        raise ArgumentError(
            f"run {directory.run_id} exported nothing: {directory.export} is empty; export a model in the training "
            "function"
        )
    return publish.register_export(Store(uri), name, directory, recorded.run_id if recorded is not None else "")
