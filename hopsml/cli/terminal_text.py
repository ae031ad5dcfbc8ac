"""Removal of control sequences from text of other users before it is printed on a terminal; colours remain."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator

from hopsml.tracking.listing import plain

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
    print(plain(text), file=sys.stderr if to_stderr else sys.stdout, flush=True)


def harmless(pieces: Iterable[str]) -> Iterator[str]:
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
