"""Fixtures of the storage tests."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest

from hopsml.storage import filesystem


@pytest.fixture(autouse=True)
def _no_process_left() -> Iterator[None]:
    """No helper process outlives a test."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    filesystem.close_all()
    left = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    assert not left, f"processes left behind: {left}"


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a developer's shell or a cluster sets must not change the tests."""
    for key in (
        "HADOOP_CONF_DIR",
        "HADOOP_HOME",
        "HADOOP_USER_NAME",
        "HADOOP_TOKEN_FILE_LOCATION",
        "HOPSML_PROJECT",
        "HOPSML_PROJECT_URL",
        "HOPSML_STORAGE_TIMEOUT_S",
    ):
        monkeypatch.delenv(key, raising=False)
