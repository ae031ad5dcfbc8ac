"""Command of a job as a child process: its errors are copied through, and their end is the cause of a failure."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import subprocess
import sys
import termios
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from hopsml.core.tracebacks import ELSEWHERE

RETAINED = 1 << 16  # bytes of the end of a command's stderr
_PIECE = 1 << 16
_UNCAUGHT = 1  # exit status of Python after an exception
_HEADER = "Traceback (most recent call last):"
_CHAINED = ("The above exception was the direct cause", "During handling of the above exception")


class CommandFailed(Exception):
    """Error raised when a command has ended with an exit status other than 0, or by a signal.

    Attributes:
        cause: What the command wrote about it, and how it ended.
        remote_traceback: The traceback that it wrote; else the cause.
    """

    def __init__(self, status: int, shown: str, written: str) -> None:
        """Create the error.

        Args:
            status: Exit status, or the negative number of the signal.
            shown: The command, shortened.
            written: End of what it wrote to stderr.
        """
        ended = str(subprocess.CalledProcessError(status, shown))
        lines = [line.rstrip() for line in written.splitlines()]
        found, error = _last_traceback(lines) if status == _UNCAUGHT else ("", "")
        said = error or next((line.strip() for line in reversed(lines) if _is_cause(line)), "")
        self.cause = f"{said} ({ended.removesuffix('.')})" if said else ended
        self.remote_traceback = found or self.cause
        super().__init__(self.cause)


def _is_cause(line: str) -> bool:
    return bool(line.strip()) and not line.startswith(ELSEWHERE)


def _last_traceback(lines: list[str]) -> tuple[str, str]:
    """Return the last traceback among these lines with those chained to it, and the first line of its error.

    A prefix that torch puts before each line, such as ``[rank0]: ``, is removed.
    """
    headers = [number for number, line in enumerate(lines) if line.endswith(_HEADER)]
    if not headers:
        return "", ""
    prefix = lines[headers[-1]].removesuffix(_HEADER)
    plain = [line.removeprefix(prefix) for line in lines]
    error = next((line for line in plain[headers[-1] + 1 :] if line and not line.startswith(" ")), "")
    begin = headers.pop()
    while headers and any(line.startswith(_CHAINED) for line in plain[headers[-1] : begin]):
        begin = headers.pop()
    return "\n".join(line for line in plain[begin:] if not line.startswith(ELSEWHERE)) + "\n", error


def run_command(line: Sequence[str], shown: str, variables: Mapping[str, str], folder: Path) -> None:
    """Run a command to its end, with its standard streams as those of this process.

    Args:
        line: The command.
        shown: The command as it is named in an error.
        variables: Its environment variables.
        folder: Its working directory.

    Raises:
        CommandFailed: It has failed.
    """
    reading, writing = os.pipe()
    try:
        process = subprocess.Popen(line, env=dict(variables), cwd=folder, stderr=writing)
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    try:
        written = _copied_errors(process, reading)
    except BaseException:
        process.kill()
        raise
    finally:
        os.close(reading)
        status = process.wait()
    if status:
        raise CommandFailed(status, shown, written.decode(errors="replace"))


def _copied_errors(process: subprocess.Popen[bytes], reading: int) -> bytes:
    """Copy a pipe to stderr until the process has exited, and return its last bytes.

    Processes that the command has left behind may hold the pipe open, and write without end: after the exit only what is
    in the pipe then is read.
    """
    last = b""
    exited, exiting = os.pipe()

    def report_exit() -> None:
        process.wait()
        os.close(exiting)

    def copy(most: int) -> bytes:
        nonlocal last
        piece = os.read(reading, most)
        last = (last + piece)[-RETAINED:]
        _write_to_stderr(piece)
        return piece

    threading.Thread(target=report_exit, daemon=True).start()
    try:
        watched = [reading, exited]
        while exited not in select.select(watched, [], [])[0]:
            if not copy(_PIECE):
                watched.remove(reading)
        if left := _available_bytes(reading):
            copy(left)
    finally:
        os.close(exited)
    return last


def _available_bytes(pipe: int) -> int:
    """Return the number of bytes that can be read from a pipe without waiting."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def _write_to_stderr(data: bytes) -> None:
    """Write bytes to the descriptor of stderr; what it refuses is dropped."""
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(2, data) :]
