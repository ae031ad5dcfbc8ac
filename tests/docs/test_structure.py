"""docs/structure.md is one page, and what it names is there."""

from __future__ import annotations

import re

import pytest

from tests.docs import pages

pytestmark = pytest.mark.fast
PAGE = "docs/structure.md"
_PATH = re.compile(r"^[\w./]+(/|\.py)$")


def test_one_page() -> None:
    lines = pages.text(PAGE).splitlines()
    assert len(lines) <= 100
    assert [line for line in lines if len(line) > 125] == []


def test_at_most_thirty_words() -> None:
    words = [word for cell, *_ in pages.rows(PAGE, "Words") for word in cell.split(", ")]
    assert 20 < len(words) <= 30 and len(set(words)) == len(words)


def test_what_it_names_is_there() -> None:
    """A folder or file is named from the repository, from ``hopsml/``, or in its row's folder of the package."""
    missing = []
    for line in pages.text(PAGE).splitlines():
        named = [name for name in pages.names(line) if _PATH.match(name)]
        places = [pages.ROOT, pages.ROOT / "hopsml", *(pages.ROOT / name for name in named[:1])]
        missing += [name for name in named if not any((place / name).exists() for place in places)]
    assert missing == []
