"""Tests that docs/architecture.md is short, and that each file that it names exists."""

from __future__ import annotations

import re

import pytest

from tests.docs import pages

pytestmark = pytest.mark.fast
PAGE = "docs/architecture.md"
_PATH = re.compile(r"^[\w./]+(/|\.py)$")


def test_the_page_is_short() -> None:
    lines = pages.text(PAGE).splitlines()
    assert len(lines) <= 160
    assert [line for line in lines if len(line) > 145] == []


def test_each_named_file_and_folder_exists() -> None:
    """A path is relative to the repository, to ``hopsml/``, or to the first folder that its line names."""
    missing = []
    for line in pages.text(PAGE).splitlines():
        named = [name for name in pages.names(line) if _PATH.match(name)]
        places = [pages.ROOT, pages.ROOT / "hopsml", *(pages.ROOT / name for name in named[:1])]
        missing += [name for name in named if not any((place / name).exists() for place in places)]
    assert missing == []
