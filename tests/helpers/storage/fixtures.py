"""Fixtures of the storage tests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopsml.storage import filesystem
from tests.helpers import small_disk


def children() -> set[int]:
    """Return the pids of this process's children."""
    found: set[int] = set()
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError):  # a thread that has just ended
            found |= {int(pid) for pid in path.read_text().split()}
    return found


@pytest.fixture(autouse=True)
def _no_process_left() -> Iterator[None]:
    """Check that no helper process outlives a test."""
    before = children()
    yield
    filesystem.close_all()
    assert children() <= before, "processes left behind"


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove variables of a developer's shell or a cluster that would change the tests."""
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


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MiB."""
    with small_disk.mounted(tmp_path / "disk", 1024) as disk:
        yield disk
