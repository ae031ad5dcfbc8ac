"""Tests that the pages of architecture are short, and that each file that they name exists."""

from __future__ import annotations

import re

import pytest

from tests.helpers import pages

pytestmark = pytest.mark.fast
PAGES = pytest.mark.parametrize("page", ["docs/architecture.md", "docs/architecture-service.md"])
_PATH = re.compile(r"^[\w./]+(/|\.py)$")


@PAGES
def test_architecture_page_is_short(page: str) -> None:
    lines = pages.text(page).splitlines()
    assert len(lines) <= 160
    assert [line for line in lines if len(line) > 145] == []


@PAGES
def test_files_named_on_architecture_pages_exist(page: str) -> None:
    """A path is relative to the repository, to ``hopsml/``, or to the first folder that its line names."""
    missing = []
    for line in pages.text(page).splitlines():
        named = [name for name in pages.names(line) if _PATH.match(name)]
        places = [pages.ROOT, pages.ROOT / "hopsml", *(pages.ROOT / name for name in named[:1])]
        missing += [name for name in named if not any((place / name).exists() for place in places)]
    assert missing == []
