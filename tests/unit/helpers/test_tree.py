"""Tests that each test file is in the folder that its markers name, and that helpers import no tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import _fast

pytestmark = pytest.mark.fast
TESTS = Path(__file__).parents[2]


@pytest.mark.parametrize(("folder", "other"), [("unit", False), ("integration", True)])
def test_test_file_is_in_the_folder_that_its_markers_require(folder: str, other: bool) -> None:
    """No fast test: tests/integration. Fast tests alone: tests/unit."""
    assert [path for path in (TESTS / folder).rglob("test_*.py") if _fast(path) is other] == []


@pytest.mark.parametrize("side", ["unit", "integration"])
def test_test_folders_correspond_to_folders_of_the_package_or_repository(side: str) -> None:
    places = (TESTS.parent / "hopsml", TESTS.parent, TESTS)
    folders = {path.parent.name for path in (TESTS / side).glob("*/__init__.py")} - {"spark", "gpu"}
    assert [name for name in folders if not any((place / name).is_dir() for place in places)] == []


def test_helpers_import_no_tests() -> None:
    imported = re.compile(r"^\s*from tests\.(?:unit|integration|chaos|soak)\b", re.M)
    assert [path for path in (TESTS / "helpers").rglob("*.py") if imported.search(path.read_text())] == []
