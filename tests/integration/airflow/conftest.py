"""Fixture of the separate Airflow environment, which the first test that needs it creates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import leaks
from tests.helpers.airflow.harness import Airflow, Forker, airflow_in, make_database


@pytest.fixture(scope="session")
def airflow_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create an empty database."""
    with leaks.not_of_this_test():
        return make_database(tmp_path_factory.mktemp("airflow") / "home")


@pytest.fixture(scope="session")
def forker(airflow_database: Path) -> Iterator[Forker]:
    """Start a fork server that has imported Airflow."""
    with leaks.not_of_this_test():
        made = Forker(airflow_database.parent)
    yield made
    made.close()


@pytest.fixture
def airflow(airflow_database: Path, forker: Forker, tmp_path: Path) -> Iterator[Airflow]:
    """Yield a separate Airflow for the test, with the profile ``local``."""
    with airflow_in(tmp_path / "airflow", airflow_database, {}, forker) as made:
        yield made
