"""A project that a test fills with runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.service.project import ProjectOnDisk


@pytest.fixture
def project(tmp_path: Path) -> ProjectOnDisk:
    """Empty at first."""
    return ProjectOnDisk(tmp_path / "digits")
