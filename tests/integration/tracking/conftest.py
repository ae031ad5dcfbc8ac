"""Fixture of a real MLflow server."""

from __future__ import annotations

import pytest

from tests.helpers.tracking.mlflow_server import MlflowServer


@pytest.fixture(scope="session")
def server(mlflow_server: MlflowServer) -> MlflowServer:
    """A server that answers; a test that stops it starts it again."""
    return mlflow_server
