"""Tests of how far the numbers of MLflow's versions follow those of the project."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from hopsml.model import registry
from hopsml.model.description import ModelDescription
from hopsml.model.version import Version

pytestmark = pytest.mark.fast


class Counting:
    """A registry of MLflow's that has ``last`` versions."""

    def __init__(self, last: int) -> None:
        self.last, self.left = last, set(range(1, last + 1))

    def register_version(self, *arguments: Any) -> str:
        self.last += 1
        self.left.add(self.last)
        return str(self.last)

    def delete_version(self, name: str, number: str) -> None:
        self.left.remove(int(number))


@pytest.mark.parametrize(("version", "made"), [(3, 3), (1, 3), (7, 7), (20240613, 3)])
def test_mlflow_version_numbers_follow_project_versions_if_few_are_missing(version: int, made: int) -> None:
    store = Counting(2)
    described = ModelDescription("digits", version, "files", datetime.now(UTC))
    registry._register(store, Version(f"file:///p/Models/digits/{version}", described))  # type: ignore[arg-type]
    assert store.last == made and store.left == {1, 2, made}
