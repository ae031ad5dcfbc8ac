"""Control of spark-submit as a process group: start, wait, and end with all that it has started, also after a signal."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO, Protocol

import psutil

from hopsml.core import platforms
from hopsml.core.newer_python import OWN_PROCESS_GROUP
from hopsml.submission import spark_command

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Context manager that stores SIGINT and SIGTERM until ``wait`` returns them; otherwise they have no effect.

    For the main thread of a program. A pipe stores them: a signal handler may run while a lock is held, so it must take
    none.
    """

    def __init__(self) -> None:
        self.last = 0  # the signal that was returned last
        self._read = self._write = -1
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        self._read, self._write = platforms.nonblocking_pipe()
        self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._read)
        os.close(self._write)

    def wait(self, timeout_s: float, other: int | None = None) -> int | None:
        """Wait for the next signal and return its number; None if none arrives.

        Args:
            timeout_s: longest wait in seconds.
            other: descriptor that also ends the wait when it is readable.
        """
        watched = [self._read] if other is None else [self._read, other]
        if self._read not in select.select(watched, [], [], max(0.0, timeout_s))[0]:
            return None
        self.last = os.read(self._read, 1)[0]
        return self.last

    def _note(self, number: int, frame: FrameType | None) -> None:
        try:
            os.write(self._write, bytes([number]))
        except BlockingIOError:  # thousands of signals that have not been read
            pass


class Waiter(Protocol):
    """Interface for waiting for signals: ``Interrupts`` or ``NoInterrupts``."""

    def wait(self, timeout_s: float, other: int | None = None) -> int | None:
        """Return a signal's number; None after ``timeout_s`` seconds, or when the descriptor ``other`` is readable."""


class NoInterrupts:
    """Waiter for a caller that handles signals itself."""

    def wait(self, timeout_s: float, other: int | None = None) -> int | None:
        """Wait ``timeout_s`` seconds, or until ``other`` is readable; return None."""
        select.select([] if other is None else [other], [], [], max(0.0, timeout_s))
        return None


GRACE_S = 10.0  # seconds from the first signal to SIGKILL
TAIL_BYTES = 6000
_APPLICATION = re.compile(r"application_\d+_\d+")
_REAP_S = 5.0  # seconds until the system has reaped killed processes
_GATEWAY = b"PYSPARK_GATEWAY_PORT"  # variable by which spark-submit gives a script the port of its JVM
# the guard gets the group's number before the process becomes the command
_REPORT_AND_RUN = 'echo $$ >&0; exec "$0" "$@" < /dev/null'
_PROC = Path("/proc")
_GUARD = Path(__file__).with_name("guard.py")


class SparkSubmit:
    """Running spark-submit in a separate process group; a context manager that leaves no process behind.

    No process is left even if this one is killed by SIGKILL. Settings that other users of this machine must not read
    are not in its arguments (``spark_command``). With ``quiet`` its output is stored, and ``output_tail`` returns the end of
    it; otherwise it goes to this process's output.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], *, quiet: bool) -> None:
        self._gone = False  # then its number may be another group's
        with contextlib.ExitStack() as undo:
            self._kept: BinaryIO | None = None
            if quiet:
                self._kept = undo.enter_context(tempfile.TemporaryFile(prefix="hopsml-submit-"))
            line, hidden_settings = spark_command.split_command(command)
            if shutil.which(line[0], path=environment.get("PATH")) is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), line[0])
            passed: list[int] = []
            if hidden_settings:
                defaults, options = spark_command.read_spark_defaults(line[0], environment)
                content = defaults + spark_command.to_properties(hidden_settings)
                file, passed = platforms.hidden_file(content, "hopsml-submit", undo)
                line[1:1] = ["--properties-file", file, *options]
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_GUARD), str(GRACE_S)], stdin=subprocess.PIPE, start_new_session=True
            )
            undo.callback(self._guard.communicate, b"x")
            self._process: subprocess.Popen[bytes] = subprocess.Popen(
                ["/bin/sh", "-c", _REPORT_AND_RUN, *line],
                env=dict(environment),
                pass_fds=passed,
                stdin=self._guard.stdin,
                stdout=self._kept,
                stderr=self._kept,
                **OWN_PROCESS_GROUP,  # Ctrl-C at a terminal is for this process, which passes it on once
            )
            undo.callback(self.end, signal.SIGKILL)
            self.ended = platforms.end_descriptor(self._process)  # readable once the process has ended
            undo.callback(os.close, self.ended)
            self._resources = undo.pop_all()

    def __enter__(self) -> SparkSubmit:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self._resources.close()

    def poll(self) -> int | None:
        """Return spark-submit's exit status, negative for a signal; None while it runs."""
        return self._process.poll()

    def send_signal(self, number: int) -> None:
        """Send a signal to the whole process group; ignored if it has ended."""
        if not self._gone:
            try:
                os.killpg(self._process.pid, number)
            except ProcessLookupError:
                self._gone = True

    def send_signal_to_script(self, number: int) -> bool:
        """Send a signal only to the script; return False if no script runs (yet).

        spark-submit then shuts down in order. A signal to all processes would make the JVM shut down while the script
        still needs it, which prints pages of Java errors.
        """
        scripts = [pid for pid in _children(self._process.pid) if _GATEWAY in _variables(pid)]
        for pid in scripts:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                return False
        return bool(scripts)

    def end(self, number: int = signal.SIGTERM, grace_s: float = GRACE_S) -> None:
        """Send a signal to the group, SIGKILL to what remains of it after ``grace_s`` seconds, and wait for its end."""
        self.send_signal(number)
        self._wait_until_gone(grace_s)
        self.send_signal(signal.SIGKILL)
        self._wait_until_gone(_REAP_S)
        self._process.wait()

    def _wait_until_gone(self, timeout_s: float) -> None:
        """Wait until the group has no process, at most ``timeout_s`` seconds."""
        deadline = time.monotonic() + timeout_s
        while self.has_processes() and time.monotonic() < deadline:
            time.sleep(0.02)

    def has_processes(self) -> bool:
        """Return True if a process of the group is alive, spark-submit itself or one that it has started."""
        self._process.poll()  # reaps the child, which would otherwise count as a member
        self.send_signal(0)
        return not self._gone and _is_alive(self._process.pid)

    def application_id(self) -> str:
        """Return the id of the application of YARN in the end of the output; "" if there is none."""
        found = _APPLICATION.findall(self.output_tail())
        return found[-1] if found else ""

    def output_tail(self) -> str:
        """Return the end of the output; "" unless ``quiet``."""
        if self._kept is None:
            return ""
        length = os.fstat(self._kept.fileno()).st_size
        start = max(0, length - TAIL_BYTES)
        return os.pread(self._kept.fileno(), length - start, start).decode(errors="replace").strip()


def _is_alive(group: int) -> bool:
    """Return True if a process of the group is alive; zombies do not count."""
    return any(facts[2] == str(group).encode() and facts[0] not in (b"Z", b"X") for _, facts in _processes())


def _children(pid: int) -> list[int]:
    return [child for child, facts in _processes() if facts[1] == str(pid).encode()]


def _variables(pid: int) -> set[bytes]:
    """Return the names of the variables with which a process was started; none if it has ended."""
    if not _PROC.is_dir():
        try:
            return {name.encode() for name in psutil.Process(pid).environ()}
        except psutil.Error:
            return set()
    try:
        return {entry.partition(b"=")[0] for entry in Path(_PROC, str(pid), "environ").read_bytes().split(b"\0")}
    except OSError:
        return set()


def _processes() -> Iterator[tuple[int, list[bytes]]]:
    """Yield the id of each process, with its state, parent and group as in /proc/PID/stat."""
    if not _PROC.is_dir():
        yield from _processes_of_psutil()
        return
    for entry in os.listdir(_PROC):
        if entry.isdigit():
            try:
                facts = Path(_PROC, entry, "stat").read_bytes().rpartition(b")")[2].split()
            except OSError:  # ended since
                continue
            yield int(entry), facts


def _processes_of_psutil() -> Iterator[tuple[int, list[bytes]]]:
    """Yield the same where there is no /proc, for instance on macOS."""
    for process in psutil.process_iter(["ppid", "status"]):
        with contextlib.suppress(OSError):  # ended since
            group = os.getpgid(process.pid)
            state = b"Z" if process.info["status"] == psutil.STATUS_ZOMBIE else b"R"
            yield process.pid, [state, str(process.info["ppid"]).encode(), str(group).encode()]
