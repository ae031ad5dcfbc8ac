"""A project that a test fills with runs, and a browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import leaks
from tests.service.project import ProjectOnDisk

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
