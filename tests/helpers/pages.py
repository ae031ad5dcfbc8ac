"""Pages of the documentation, README first, with their snippets and tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_NOT_FOR_USERS = ("decisions", "architecture.md", "architecture-service.md", "glossary.md")


def users_pages() -> list[str]:
    """Return README and the site's pages for users, as paths below the repository."""
    found = (path.relative_to(ROOT) for path in sorted(ROOT.joinpath("docs").rglob("*.md")))
    return ["README.md", *(str(path) for path in found if path.parts[1] not in _NOT_FOR_USERS)]


def text(page: str) -> str:
    """Return a page's Markdown."""
    return (ROOT / page).read_text(encoding="utf-8")


def snippets(page: str, language: str = "python") -> list[str]:
    """Return the text of all ```` ```python ```` blocks."""
    return re.findall(rf"^```{language}\n(.*?)^```", text(page), re.M | re.S)


def snippet(page: str, words: str) -> str:
    """Return the snippet that contains these words."""
    (found,) = [one for one in snippets(page) if words in one]
    return found


def rows(page: str, section: str = "") -> Iterator[list[str]]:
    """Return the cells of each row of the tables in a section, or of all, without heads and rules."""
    part = text(page).partition(f"\n## {section}\n")[2].partition("\n## ")[0] if section else text(page)
    lines = part.splitlines()
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("|") and not line.startswith("|---") and not below.startswith("|---"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def names(cell: str) -> list[str]:
    """Return the texts in backticks."""
    return re.findall(r"`([^`]+)`", cell)
