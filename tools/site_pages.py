"""A hook of mkdocs: the dated decisions are found in their folder, so that a new one is in the site's navigation by itself.

Settings of mkdocs name this file; nothing else imports it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

FOLDER = "decisions"
SECTION = "Why"  # of the navigation, in mkdocs.yml
LIST = "<!-- decisions -->"  # in a page: a list of them


def on_config(config: Any) -> Any:
    """Put them below ``SECTION``, the youngest first."""
    pages = [f"{FOLDER}/{path.name}" for path in decisions(Path(config["docs_dir"]))]
    for part in config["nav"]:
        if SECTION in part:
            part[SECTION].append({"Decisions": pages})
    return config


def on_page_markdown(markdown: str, config: Any, **_: Any) -> str:
    """Put the list where a page asks for it."""
    if LIST not in markdown:
        return markdown
    lines = [f"- [{title(path)}]({FOLDER}/{path.name})" for path in decisions(Path(config["docs_dir"]))]
    return markdown.replace(LIST, "\n".join(lines))


def decisions(docs: Path) -> list[Path]:
    """The files, the youngest first."""
    return sorted(docs.joinpath(FOLDER).glob("*.md"), reverse=True)


def title(path: Path) -> str:
    """A page's first heading."""
    heads = (line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("# "))
    return next(heads, f"# {path.stem}")[2:]
