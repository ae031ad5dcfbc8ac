"""Call of the user's function in the worker, its output streams, and safe descriptions of the errors that it raises.

Keras registrations (``register_keras_serializable``) are transferred with the function: the decorator ran in the driver,
and a class or function that is pickled by value arrives without its effect.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib
import io
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, TextIO, cast

from hopsml.cluster.shared.plain import utf8
from hopsml.core import redact, tracebacks

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


LIBRARIES = ("keras", "tf_keras")


def registrations(obj: Any) -> Iterator[tuple[str, str]]:
    """Yield the library and the registered name (package>name) of an object, without importing a library."""
    for library in LIBRARIES:
        saving = getattr(sys.modules.get(library), "saving", None)
        name = obj.__name__ if saving is None else saving.get_registered_name(obj)
        if name != obj.__name__:
            yield library, name


def registering(set_state: Callable[[Any, Any], Any], library: str, name: str) -> Callable[[Any, Any], Any]:
    """Return a callable for the last step of unpickling: ``set_state(obj, state)``, then the registration."""
    return functools.partial(_set_and_register, set_state, library, name)


def _set_and_register(set_state: Callable[[Any, Any], Any], library: str, name: str, obj: Any, state: Any) -> None:
    """Set the state of an unpickled object, and register it with Keras if that is installed."""
    set_state(obj, state)
    try:
        saving = importlib.import_module(library).saving
    except ImportError:
        return  # without Keras no code needs the registration
    package, _, own = name.partition(">")
    saving.register_keras_serializable(package, own)(obj)


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class LostLinesNote:
    """Note that log lines are lost, sent once, from the process that created it and from a separate thread.

    The thread that prints may be in a signal handler that has interrupted another report.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell, self._process = tell, os.getpid()
        self._thread: threading.Thread | None = None

    def report_loss(self, error: OSError) -> None:
        """Send the note that a write has failed with ``error``; does not wait, and raises nothing."""
        if self._thread is not None or os.getpid() != self._process:
            return
        text = f"lines of its log are lost, since its disk cannot be written: {error.strerror}"
        self._thread = threading.Thread(target=self._say, args=(text,), name="hopsml-log-note", daemon=True)
        with contextlib.suppress(RuntimeError):  # no further thread can be started
            self._thread.start()

    def _say(self, text: str) -> None:
        """Send the note."""
        with contextlib.suppress(OSError):  # the agent has ended
            self._tell(text)

    def wait_until_sent(self, timeout_s: float) -> None:
        """Wait at most ``timeout_s`` seconds until the note has been sent."""
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(timeout_s)


class _Log(io.FileIO):
    """File that counts a write as done when the disk is full."""

    def __init__(self, descriptor: int, note: LostLinesNote) -> None:
        super().__init__(descriptor, "wb", closefd=False)
        self._note = note

    def write(self, data: ReadableBuffer, /) -> int:
        """Write data to the file; if the disk is full it is dropped, and counts as written."""
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            self._note.report_loss(error)
            return memoryview(data).nbytes


def install_log_streams(tell: Callable[[str], None]) -> LostLinesNote:
    """Replace ``sys.stdout`` and ``sys.stderr``; ``tell`` is called once, on a separate thread, when lines are lost."""
    note = LostLinesNote(tell)
    sys.stdout = sys.__stdout__ = _over(sys.stdout, 1, note)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _over(sys.stderr, 2, note)  # type: ignore[misc]
    return note


def _over(stream: TextIO | None, descriptor: int, note: LostLinesNote) -> io.TextIOWrapper:
    """Return a text stream over the file with the interpreter's settings, but line-buffered."""
    if stream is not None:
        stream.flush()
    log, unbuffered = _Log(descriptor, note), getattr(stream, "write_through", False)  # the latter: python -u
    return io.TextIOWrapper(
        cast(BinaryIO, log) if unbuffered else io.BufferedWriter(log),
        encoding=getattr(stream, "encoding", "utf-8"),
        errors=getattr(stream, "errors", "backslashreplace"),
        line_buffering=True,  # users may follow the log: a file would get 8 KB at a time
        write_through=unbuffered,
    )


MOST_CAUSE = 4_000  # characters
MOST_TEXT = 1_000_000  # characters of a traceback; an error may contain a whole file
# What torch's C++ code makes of an error of a Python callback: the error and its frames, all of them internal, as one text.
_OF_CALLBACK = re.compile(
    r"RuntimeError: Got the following error when running the callback: ((?:.+\n)*?.+)\n\nAt:\n(?:  .+\(\d+\): .+(?:\n|\Z))+"
)
_STYLE = re.compile(r"\x1b\[[\d;:]*m")  # of a terminal: a colour, bold
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
            write_to_log(traceback_text(error, error.__traceback__))
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)
    finally:
        os._exit(1)


def write_to_log(text: str) -> None:
    """Write to the worker's log if that is possible: its disk may be full, or the function may have closed it."""
    try:
        print(text, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass


def short_error_text(error: BaseException) -> str:
    """Return an error as short text without secrets: its type and message, or the call of ``sys.exit``."""
    if isinstance(error, SystemExit):
        description = f"called sys.exit({_text(repr, error.code)})"
    else:
        text = tracebacks.without_node_names(error_text(error))
        description = _of_callback(f"{type(error).__name__}: {text}").strip().removesuffix(":")
    return redact.text(utf8(_uncoloured(description)[: MOST_CAUSE + _MARGIN]))[:MOST_CAUSE]


def _of_callback(text: str) -> str:
    """Return a text in which an error of torch's C++ code is replaced by the error of the callback that it reports."""
    return _OF_CALLBACK.sub(r"\1\n", text) if "when running the callback" in text else text


def error_text(error: BaseException) -> str:
    """Return ``str(error)``, or a text with the error's type if that raises."""
    return _text(str, error)


def traceback_text(error: BaseException, shown: TracebackType | None) -> str:
    """Return the traceback as text without secrets, limited to its last ``MOST_TEXT`` characters.

    Args:
        error: The error.
        shown: Its frames.
    """
    text = _uncoloured("".join(traceback.format_exception(type(error), error, shown)))
    return redact.text(utf8(text[-MOST_TEXT - _MARGIN :]))[-MOST_TEXT:]


def report_traceback(error: BaseException, file: Path, url: str) -> str:
    """Write a traceback without hopsml's frames to the log, and return it.

    With frames of hopsml behind the user's the complete one is stored, and the log names its file. An error that hopsml
    did not raise on purpose, with hopsml's frame at its end, keeps all frames; one that it raised on purpose before
    the function began has none.

    Args:
        error: The error of the user's function.
        file: File for the complete traceback.
        url: Location of that file in the run directory.
    """
    whole = traceback_text(error, tracebacks.from_first_user_frame(error.__traceback__))
    is_before = tracebacks.user_part(error.__traceback__) is None  # while hopsml prepares the process for the function
    with tracebacks.reduced_to_user_frames(error, tracebacks.worker_part):
        text = _of_callback(traceback_text(error, None if is_before else error.__traceback__))
    if tracebacks.shows_all() or tracebacks.is_internal_fault(error):
        text = whole
    write_to_log(text)
    if text != whole:
        with contextlib.suppress(OSError):  # a full disk
            file.write_text(whole)
            write_to_log(f"{tracebacks.ELSEWHERE}{url}; {tracebacks.VARIABLE}=full shows it here")
    return text


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and those that caused it, each once, even if they form a cycle."""
    met: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in met:
        met.add(id(found))
        yield found
        found = found.__cause__ or found.__context__


def _uncoloured(text: str) -> str:
    """Return a text without the colours and styles of a terminal, which Keras writes into its errors."""
    return _STYLE.sub("", text)


def _text(make: Callable[[Any], str], value: Any) -> str:
    """Return ``make(value)``; if that raises, a text with the error's type."""
    try:
        return make(value)
    except BaseException as problem:  # noqa: BLE001 the user's __str__ and __repr__ may do anything
        return f"(its text is not available, since str() raises {type(problem).__name__})"
