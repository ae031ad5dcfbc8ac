"""A real MLflow server for all tests that need one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import leaks
from tests.tracking.mlflow_server import MlflowServer


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    """It answers; a test that stops it starts it again."""
    server = MlflowServer(tmp_path_factory.mktemp("mlflow"))
    with leaks.not_of_this_test():
        server.start()
    yield server
    server.stop()
