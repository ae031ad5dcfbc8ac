"""Tracebacks without hopsml's own frames, which lead only to where the error is.

In a notebook an error of ours is shown by ``render``, which IPython asks for; with ``%xmode Verbose`` all frames stay.
"""

from __future__ import annotations

import contextlib
import itertools
import linecache
import re
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

_OWN = str(Path(__file__).parent) + "/"
_FRAME = re.compile(r'  File "(.+)", line (\d+), in ')
_LIBRARY = (sysconfig.get_path("stdlib") + "/", *(sysconfig.get_path(name) + "/" for name in ("purelib", "platlib")))
E = TypeVar("E", bound=BaseException)

on_render: list[Callable[[BaseException], None]] = []  # called with an error that is about to be shown to a person


def is_own(file: str) -> bool:
    """Whether ``file`` is one of hopsml's own source files."""
    return file.startswith(_OWN)


def of_user(found: TracebackType | None) -> TracebackType | None:
    """What of a traceback is the user's: everything up to the call of hopsml, and what that called of the user's again.

    None where nothing is.
    """
    kept: list[TracebackType] = []
    seen_own = False
    while found is not None:
        file = found.tb_frame.f_code.co_filename
        if is_own(file):
            seen_own = True
        elif not seen_own or not file.startswith(("<frozen", *_LIBRARY)):
            kept.append(found)
        found = found.tb_next
    result: TracebackType | None = None
    for one in reversed(kept):
        result = TracebackType(result, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return result


def from_user(found: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame that is not hopsml's on; all of it if every frame is."""
    inner = found
    while inner is not None and is_own(inner.tb_frame.f_code.co_filename):
        inner = inner.tb_next
    return inner or found


def with_source(text: str) -> str:
    """A worker's traceback with the lines of code that only this process knows: those of a notebook's cells."""
    lines, found = text.splitlines(keepends=True), ""
    for line, following in itertools.zip_longest(lines, lines[1:], fillvalue=""):
        found += line
        frame = _FRAME.match(line)
        if frame and frame[1] in linecache.cache and not following.startswith("    "):
            source = linecache.getline(frame[1], int(frame[2])).strip()
            found += f"    {source}\n" if source else ""
    return found


def render(error: BaseException) -> list[str]:
    """The lines that IPython shows: the user's frames and the error, without chained errors."""
    for tell in on_render:
        with contextlib.suppress(Exception):  # a display's trouble must not hide an error
            tell(error)
    shell = sys.modules["IPython"].get_ipython()
    formatter: Any = shell.InteractiveTB
    if formatter.mode == "Verbose":
        return list(formatter.structured_traceback(type(error), error, error.__traceback__))
    cause, context, suppressed = error.__cause__, error.__context__, error.__suppress_context__
    try:
        error.__cause__, error.__suppress_context__ = None, True
        return list(formatter.structured_traceback(type(error), error, of_user(error.__traceback__)))
    finally:
        error.__cause__, error.__context__, error.__suppress_context__ = cause, context, suppressed


def shortened(error: E) -> E:
    """Make IPython show this error without hopsml's frames, as it shows errors of hopsml's own; returns the error."""
    error._render_traceback_ = lambda: render(error)  # type: ignore[attr-defined]
    return error
