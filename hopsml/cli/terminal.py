"""Text on a terminal: tables, shared options, and removal of control sequences from text of other users."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from hopsml.tracking.listing import format_table, short_text, strip_control_sequences, truncate_to_width

if TYPE_CHECKING:
    from hopsml.storage.run_dir import RunDir
    from hopsml.tracking.compare import Difference


RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="URL, path or id of the run, the beginning of its id, or its name.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one line of JSON.")]
ProfileOption = Annotated[
    str | None, typer.Option(help="Profile: name of a file in conf/. Default: $HOPSML_PROFILE, else local.")
]
ProjectUrl = Annotated[
    str, typer.Option(help="URL of the project. Default: $HOPSML_PROJECT_URL, else HDFS if configured, else ./.hopsml.")
]


def found_run(run: str, project_url: str = "", *, is_exact: bool = False) -> RunDir:
    """Return the directory of the run that the user means; print to stderr which one it is if that is not its id.

    Args:
        run: URL, path, id, beginning of the id, or name; of several runs with a name the newest one is meant.
        project_url: URL of the project; default: the configured one.
        is_exact: True to refuse the beginning of an id, and a name of several runs.

    Raises:
        ArgumentError: there is no such run, or the text fits several ones.
    """
    from hopsml.core import settings
    from hopsml.tracking import named_runs

    directory, note = named_runs.resolve(run, project_url or settings.project_url(), is_exact=is_exact)
    if note:
        print_plain(f"hopsml: {note}", to_stderr=True)
    return directory


def print_rows(
    rows: Sequence[Sequence[str]], numbers: Collection[str] = (), wraps: str = "", is_cut: bool = False
) -> None:
    """Print a table whose first row has the titles.

    Args:
        rows: cells of each row.
        numbers: titles of the columns that are aligned at the right.
        wraps: title of the column that is wrapped on a narrow terminal.
        is_cut: True to print one line for each row, which is cut at the width of a terminal.
    """
    rows = [[strip_control_sequences(cell) for cell in row] for row in rows]
    if is_cut or not sys.stdout.isatty():
        lines = format_table([[" ".join(cell.split()) for cell in row] for row in rows], tuple(numbers))
        columns = shutil.get_terminal_size().columns
        print("\n".join([truncate_to_width(line, columns) for line in lines] if sys.stdout.isatty() else lines))
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
    return f"{found.section}: {found.name}", short_text(found.left), short_text(found.right)


LONGEST = 1 << 16  # characters of an incomplete sequence; of a longer one only the beginning is removed
RESET = "\x1b[0m"
# Beginning of a sequence that sets the title or the clipboard, or programs the terminal.
_TEXT_FOLLOWS = r"(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]"
_SEQUENCE = re.compile(
    rf"(?P<colour>\x1b\[[\d;:]*m)"
    rf"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    rf"|{_TEXT_FOLLOWS}{{0,{LONGEST}}}(?:\x07|\x1b\\|\x9c|(?=[\x1b\n]|\Z))"
    rf"|\x1b[ -/]*[0-~]?"
    rf"|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"
)
_OPEN = re.compile(rf"(?:\x1b|(?:\x1b\[|\x9b)[0-?]*[ -/]*|\x1b[ -/]+|{_TEXT_FOLLOWS}{{0,{LONGEST}}}\x1b?)\Z")


def print_plain(text: str, *, to_stderr: bool = False) -> None:
    """Print text of other users, such as names, causes and job files, without any control character."""
    print(strip_control_sequences(text), file=sys.stderr if to_stderr else sys.stdout, flush=True)


def without_control_sequences(pieces: Iterable[str]) -> Iterator[str]:
    """Yield the text without control sequences except colours, which are reset at the end.

    A sequence may begin in one piece and end in another.
    """
    rest, is_coloured = "", False
    for piece in pieces:
        text = rest + piece
        found = _OPEN.search(text, max(0, len(text) - LONGEST))
        text, rest = (text[: found.start()], text[found.start() :]) if found else (text, "")
        shown = _SEQUENCE.sub(lambda match: match["colour"] or "", text)
        is_coloured = is_coloured or "\x1b[" in shown
        if shown:
            yield shown
    if is_coloured:
        yield RESET
