"""Rows and tables of commands: fitted to a terminal's width; for programs one complete line per entry."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from hopsml.tracking.listing import plain, short, table

if TYPE_CHECKING:
    from hopsml.tracking.compare import Difference


def print_rows(rows: Sequence[Sequence[str]], numbers: Collection[str] = (), wraps: str = "") -> None:
    """Print a table whose first row has the titles.

    Args:
        rows: cells of each row.
        numbers: titles of the columns that are aligned at the right.
        wraps: title of the column that is wrapped on a narrow terminal.
    """
    rows = [[plain(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        print("\n".join(table([[" ".join(cell.split()) for cell in row] for row in rows], tuple(numbers))))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, pad_edge=False)
    for title in rows[0]:
        shown.add_column(title, justify="right" if title in numbers else "left", no_wrap=title != wraps)
    for row in rows[1:]:
        shown.add_row(*map(Text, row))
    Console().print(shown)


def difference_row(found: Difference) -> tuple[str, str, str]:
    """Return a row for a difference: name, and the shortened value on each side."""
    return f"{found.section}: {found.name}", short(found.left), short(found.right)
