"""A project that a test fills with runs, a service that a test asks, and a browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hopsml.service import server
from hopsml.service.browse.project import Project
from hopsml.service.scheduler.resources import Resources
from hopsml.service.store import JobStore
from tests import leaks
from tests.service.project import ProjectOnDisk
from tests.service.served import Served

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture
def project(tmp_path: Path) -> ProjectOnDisk:
    """Empty at first."""
    return ProjectOnDisk(tmp_path / "digits")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, without a window."""
    if CHROMIUM is None:
        pytest.skip("no chromium: apt-get install -y --no-install-recommends chromium")
    from playwright.sync_api import sync_playwright

    with leaks.not_of_this_test(), sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with its tables, to be copied: making them takes longer than a test."""
    folder = tmp_path_factory.mktemp("empty")
    JobStore.open(f"sqlite:///{folder}/service.db").close()
    return folder


@pytest.fixture
def served(empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    shutil.copytree(empty, tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(server, "this_machine", lambda gpus: Resources(0, 0, 0))  # nothing ever starts
    jobs, _ = server.opened(server.ServerSettings(tmp_path, profile="local"), "http://here/")
    yield Served(jobs, Project(f"file://{tmp_path}/project"))
    jobs.close()
