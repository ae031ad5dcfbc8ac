"""mkdocs hook that adds the dated decision records of their folder to the site's navigation.

mkdocs.yml names this file; nothing else imports it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

FOLDER = "decisions"
SECTION = "Why"  # of the navigation, in mkdocs.yml
LIST = "<!-- decisions -->"  # marker in a page for the list of decisions


def on_config(config: Any) -> Any:
    """Add the decision records below ``SECTION``, newest first."""
    pages = [f"{FOLDER}/{path.name}" for path in decisions(Path(config["docs_dir"]))]
    for part in config["nav"]:
        if SECTION in part:
            part[SECTION].append({"Decisions": pages})
    return config


def on_page_markdown(markdown: str, config: Any, **_: Any) -> str:
    """Replace the marker in a page by the list of decision records."""
    if LIST not in markdown:
        return markdown
    lines = [f"- [{title(path)}]({FOLDER}/{path.name})" for path in decisions(Path(config["docs_dir"]))]
    return markdown.replace(LIST, "\n".join(lines))


def decisions(docs: Path) -> list[Path]:
    """Return the files of the decision records, newest first."""
    return sorted(docs.joinpath(FOLDER).glob("*.md"), reverse=True)


def title(path: Path) -> str:
    """Return the first heading of a page."""
    heads = (line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("# "))
    return next(heads, f"# {path.stem}")[2:]
