"""Tests that the pages of architecture are short, and that each file and each name that they have exists."""

from __future__ import annotations

import re

import pytest

from tests.helpers import pages

pytestmark = pytest.mark.fast
PAGES = pytest.mark.parametrize("page", ["docs/architecture.md", "docs/architecture-service.md"])
_PATH = re.compile(r"^[\w./]+(/|\.py)$")
_NAME_IN_FILE = re.compile(r"`([A-Za-z_][\w.]*)`(?: in | \()`([\w/]+\.py)`")


@PAGES
def test_architecture_page_is_short(page: str) -> None:
    lines = pages.text(page).splitlines()
    assert len(lines) <= 180
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


@PAGES
def test_names_stand_in_the_files_that_architecture_pages_give(page: str) -> None:
    """A name is followed by its file: "`name` in `file.py`", "`name` (`file.py`)"."""
    found = _NAME_IN_FILE.findall(" ".join(pages.text(page).split()))
    assert found
    missing = [f"{name} in {file}" for name, file in found if not _defines(file, name.rpartition(".")[2])]
    assert missing == []


def _defines(file: str, name: str) -> bool:
    (place,) = [folder / file for folder in (pages.ROOT, pages.ROOT / "hopsml") if (folder / file).exists()]
    return re.search(rf"^\s*((async )?def|class) {name}\b|^\s*{name}\b[^=\n]*=", place.read_text(), re.M) is not None
