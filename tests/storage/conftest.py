"""Fixtures of the storage tests."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopsml.storage import filesystem


def children() -> set[int]:
    """Process ids of this process's children."""
    found: set[int] = set()
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError):  # a thread that has just ended
            found |= {int(pid) for pid in path.read_text().split()}
    return found


@pytest.fixture(autouse=True)
def _no_process_left() -> Iterator[None]:
    """No helper process outlives a test."""
    before = children()
    yield
    filesystem.close_all()
    assert children() <= before, "processes left behind"


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


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    mount = tmp_path / "disk"
    mount.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mount)], capture_output=True)
    if done.returncode:
        pytest.skip(f"no mounting here: {done.stderr.decode().strip()}")
    yield mount
    subprocess.run(["umount", str(mount)], check=True)
