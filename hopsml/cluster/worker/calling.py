"""Call of the user's function in the worker, and safe descriptions of the errors that it raises."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, NoReturn

from hopsml.cluster.shared.plain import utf8
from hopsml.core import redact

MOST_CAUSE = 4_000  # characters
MOST_TEXT = 1_000_000  # characters of a traceback; an error may contain a whole file
_MARGIN = 10_000  # this many more characters are masked before the cut, as a secret that is cut would not be recognized


def reset_argv(function: Callable[..., Any]) -> None:
    """Set ``sys.argv`` to the function's name alone, so that an option parser ignores how this process was started."""
    sys.argv = [str(getattr(function, "__name__", type(function).__name__))]


def call(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Call the function, and return its value or raise its error.

    A child process that the function forks and that returns from it exits here: its value would be mistaken for the
    worker's.
    """
    worker = os.getpid()
    try:
        value = function(**arguments)
    except BaseException as error:
        if os.getpid() != worker:
            _end_child(error)
        raise
    if os.getpid() != worker:
        _end_child(None)
    return value


def _end_child(error: BaseException | None) -> NoReturn:
    """Exit a process that the user's function forked as the interpreter would, without what its parent does as well."""
    try:
        code = error.code if isinstance(error, SystemExit) else 0 if error is None else 1
        if error is not None and not isinstance(error, SystemExit):
            tell(text_of_traceback(error, error.__traceback__))
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)
    finally:
        os._exit(1)


def tell(text: str) -> None:
    """Write to the worker's log if that is possible: its disk may be full, or the function may have closed it."""
    try:
        print(text, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass


def words_of(error: BaseException) -> str:
    """Return an error as short text without secrets: its type and message, or the call of ``sys.exit``."""
    if isinstance(error, SystemExit):
        said = f"called sys.exit({_text(repr, error.code)})"
    else:
        said = f"{type(error).__name__}: {text_of(error)}".strip().removesuffix(":")
    return redact.text(utf8(said[: MOST_CAUSE + _MARGIN]))[:MOST_CAUSE]


def text_of(error: BaseException) -> str:
    """Return ``str(error)``, or a text with the error's type if that raises."""
    return _text(str, error)


def text_of_traceback(error: BaseException, shown: TracebackType | None) -> str:
    """Return the traceback as text without secrets, limited to its last ``MOST_TEXT`` characters.

    Args:
        error: The error.
        shown: Its frames.
    """
    text = "".join(traceback.format_exception(type(error), error, shown))
    return redact.text(utf8(text[-MOST_TEXT - _MARGIN :]))[-MOST_TEXT:]


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and those that caused it, each once, even if they form a cycle."""
    met: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in met:
        met.add(id(found))
        yield found
        found = found.__cause__ or found.__context__


def _text(make: Callable[[Any], str], value: Any) -> str:
    """Return ``make(value)``; if that raises, a text with the error's type."""
    try:
        return make(value)
    except BaseException as problem:  # noqa: BLE001 the user's __str__ and __repr__ may do anything
        return f"(it cannot say more: its text raises {type(problem).__name__})"
