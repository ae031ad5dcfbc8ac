"""Tests that each statement about a distribution of Hadoop names its evidence, and that each has the same topics."""

from __future__ import annotations

import re

import pytest

from tests.helpers import pages

pytestmark = pytest.mark.fast

PAGE = "docs/how-to/distributions.md"
DISTRIBUTIONS = (
    "Amazon EMR 7",
    "Dataproc on Compute Engine",
    "Cloudera CDP Private Cloud Base 7.1.9",
    "Hopsworks",
)
TOPICS = {
    "versions", "environment", "queues", "GPUs", "logs", "Kerberos", "proxies", "storage", "ports", "dynamic allocation",
}  # fmt: skip
NAMED = r"\*documented\*: [A-Z]\w+,? "  # at least two words of the document's name
MARK = rf"\*tried\*|{NAMED}|\*not confirmed\*"


def statements(text: str) -> list[str]:
    """Return paragraphs and list items without headings, tables and code; code belongs to the text before it."""
    plain = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.M | re.S)
    parts = re.split(r"\n\n|\n(?=- )", plain)
    return [part.strip() for part in parts if part.strip() and not part.lstrip().startswith(("#", "|"))]


@pytest.mark.parametrize("section", DISTRIBUTIONS)
def test_each_row_on_a_distribution_has_a_mark(section: str) -> None:
    rows = list(pages.rows(PAGE, section))
    assert {topic for topic, *_ in rows} >= TOPICS
    for _, statement, mark in rows:
        assert re.match(rf"(?:{MARK})", f"{mark} "), statement


def test_each_paragraph_has_a_mark() -> None:
    intro, *rest = statements(pages.text(PAGE))
    assert all(f"*{mark}*" in intro for mark in ("Tried", "Documented", "Not confirmed"))
    command, *others = rest
    assert "*tried*" in command
    unmarked = [
        part for part in others if not re.search(MARK, re.sub(r"\s+", " ", part)) and "marks in each" not in part
    ]
    assert not unmarked
