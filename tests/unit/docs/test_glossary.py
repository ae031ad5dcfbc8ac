"""docs/glossary.md defines each term once, and the identifiers that it names exist in hopsml."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from tests.helpers import pages

pytestmark = pytest.mark.fast
PAGE = "docs/glossary.md"
SECTIONS = (
    "Runs and groups",
    "Processes and slots",
    "Training state and data",
    "Search",
    "Job service",
    "Models and serving",
)


def test_glossary_defines_no_term_twice() -> None:
    terms = Counter(term for section in SECTIONS for cell, *_ in pages.rows(PAGE, section) for term in cell.split(", "))
    assert len(terms) > 60
    assert [term for term, count in terms.items() if count > 1] == []


def test_glossary_identifiers_exist() -> None:
    known = set[str]()
    for path in pages.ROOT.joinpath("hopsml").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            known.update(
                getattr(node, name)
                for name in ("name", "attr", "arg", "id")
                if isinstance(getattr(node, name, None), str)
            )
    named = {name for section in SECTIONS for row in pages.rows(PAGE, section) for name in pages.names(row[2])}
    missing = {name for name in named if not (name in known if "/" not in name else pages.ROOT.joinpath(name).exists())}
    assert missing == set()
