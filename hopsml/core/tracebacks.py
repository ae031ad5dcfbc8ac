"""Tracebacks without hopsml's own frames, which do not help to find an error in the user's code.

In a notebook, IPython shows hopsml's errors with ``render``; with ``%xmode Verbose`` all frames remain.
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

_OWN = str(Path(__file__).parents[1]) + "/"
_FRAME = re.compile(r'  File "(.+)", line (\d+), in ')
_LIBRARY = (sysconfig.get_path("stdlib") + "/", *(sysconfig.get_path(name) + "/" for name in ("purelib", "platlib")))
E = TypeVar("E", bound=BaseException)

on_render: list[Callable[[BaseException], None]] = []  # called with an error before it is displayed


def is_own(file: str) -> bool:
    """Return True if ``file`` is one of hopsml's own source files."""
    return file.startswith(_OWN)


def of_user(found: TracebackType | None) -> TracebackType | None:
    """Return the user's part of a traceback: everything up to the call of hopsml, and user code that it called.

    None if no frame is the user's.
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
    """Return the traceback from the first frame on that is not hopsml's; all of it if every frame is."""
    inner = found
    while inner is not None and is_own(inner.tb_frame.f_code.co_filename):
        inner = inner.tb_next
    return inner or found


def with_source(text: str) -> str:
    """Return a worker's traceback with the source lines that only this process has: those of a notebook's cells."""
    lines, found = text.splitlines(keepends=True), ""
    for line, following in itertools.zip_longest(lines, lines[1:], fillvalue=""):
        found += line
        frame = _FRAME.match(line)
        if frame and frame[1] in linecache.cache and not following.startswith("    "):
            source = linecache.getline(frame[1], int(frame[2])).strip()
            found += f"    {source}\n" if source else ""
    return found


def render(error: BaseException) -> list[str]:
    """Return the lines that IPython shows: the user's frames and the error, without chained errors."""
    for tell in on_render:
        with contextlib.suppress(Exception):  # a failure of a display must not hide the error
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
    """Make IPython show this error without hopsml's frames, as it shows hopsml's own errors; return the error."""
    error._render_traceback_ = lambda: render(error)  # type: ignore[attr-defined]
    return error
