"""spark-submit as a process group: started, waited for, ended with all that it started."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from hopsml.submission import hidden

GRACE_S = 10.0  # from the first signal to SIGKILL
TAIL_BYTES = 6000
_REAP_S = 5.0  # until the system has buried what was killed
_GATEWAY = b"PYSPARK_GATEWAY_PORT"  # the variable by which spark-submit tells a script where its JVM is
_REPORT_AND_RUN = 'echo $$ >&0; exec "$0" "$@" < /dev/null'  # the guard knows its number before it is the command
_GUARD = Path(__file__).with_name("guard.py")


class SparkSubmit:
    """A spark-submit that runs, in a process group of its own; a context manager that leaves nothing of it behind.

    Nor is anything left when this process is killed by -9.

    Settings that others on this machine must not read do not stand in its arguments (``hidden``).

    ``quiet``: its output is kept, and ``tail`` gives the end of it; otherwise it goes where this process's goes.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], *, quiet: bool) -> None:
        self._gone = False  # then its number may be another group's
        with contextlib.ExitStack() as undo:
            self._kept: BinaryIO | None = None
            if quiet:
                self._kept = undo.enter_context(tempfile.TemporaryFile(prefix="hopsml-submit-"))
            line, hidden_settings = hidden.split_command(command)
            if shutil.which(line[0], path=environment.get("PATH")) is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), line[0])
            passed = []
            if hidden_settings:
                passed.append(hidden.memory_file(hidden.to_properties(hidden_settings)))
                undo.callback(os.close, passed[0])
                line[1:1] = ["--properties-file", f"/dev/fd/{passed[0]}", "--load-spark-defaults"]
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
                process_group=0,  # Ctrl-C at a terminal is for this process, which passes it on once
            )
            undo.callback(self.end, signal.SIGKILL)
            self.ended = os.pidfd_open(self._process.pid)  # can be read once the process has ended
            undo.callback(os.close, self.ended)
            self._resources = undo.pop_all()

    def __enter__(self) -> SparkSubmit:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self._resources.close()

    def poll(self) -> int | None:
        """spark-submit's exit status, negative for a signal; None while it runs."""
        return self._process.poll()

    def send(self, number: int) -> None:
        """Send a signal to the whole process group; nothing happens where it is gone."""
        if not self._gone:
            try:
                os.killpg(self._process.pid, number)
            except ProcessLookupError:
                self._gone = True

    def send_to_script(self, number: int) -> bool:
        """A signal for the script alone, whose end spark-submit then follows in order; False where no script runs (yet).

        A signal for all makes the JVM shut down while the script still needs it, which prints pages of Java's.
        """
        scripts = [pid for pid in _children(self._process.pid) if _GATEWAY in _variables(pid)]
        for pid in scripts:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                return False
        return bool(scripts)

    def end(self, number: int = signal.SIGTERM, grace_s: float = GRACE_S) -> None:
        """Signal the group, SIGKILL what is left of it after ``grace_s`` seconds, wait for it."""
        self.send(number)
        self._wait_until_gone(grace_s)
        self.send(signal.SIGKILL)
        self._wait_until_gone(_REAP_S)
        self._process.wait()

    def _wait_until_gone(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while self.has_processes() and time.monotonic() < deadline:
            time.sleep(0.02)

    def has_processes(self) -> bool:
        """Whether any process of the group lives, spark-submit itself or one that it has started."""
        self._process.poll()  # a child that is dead and not waited for counts as a member
        self.send(0)
        return not self._gone and _is_alive(self._process.pid)

    def tail(self) -> str:
        """The end of what it printed; empty unless it is quiet."""
        if self._kept is None:
            return ""
        length = os.fstat(self._kept.fileno()).st_size
        start = max(0, length - TAIL_BYTES)
        return os.pread(self._kept.fileno(), length - start, start).decode(errors="replace").strip()


def _is_alive(group: int) -> bool:
    """Whether a process of the group runs; one that is dead and that nobody has waited for does not count."""
    return any(facts[2] == str(group).encode() and facts[0] not in (b"Z", b"X") for _, facts in _processes())


def _children(pid: int) -> list[int]:
    return [child for child, facts in _processes() if facts[1] == str(pid).encode()]


def _variables(pid: int) -> set[bytes]:
    """Names of the variables that a process was started with; none for one that is gone."""
    try:
        return {entry.partition(b"=")[0] for entry in Path("/proc", str(pid), "environ").read_bytes().split(b"\0")}
    except OSError:
        return set()


def _processes() -> Iterator[tuple[int, list[bytes]]]:
    """Of each process its id, and state, parent, group and more as /proc has them."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                facts = Path("/proc", entry, "stat").read_bytes().rpartition(b")")[2].split()
            except OSError:  # gone meanwhile
                continue
            yield int(entry), facts
