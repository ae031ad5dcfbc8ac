"""Control of spark-submit as a process group: start, wait, and end with all that it has started."""

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

GRACE_S = 10.0  # seconds from the first signal to SIGKILL
TAIL_BYTES = 6000
_REAP_S = 5.0  # seconds until the system has reaped killed processes
_GATEWAY = b"PYSPARK_GATEWAY_PORT"  # variable by which spark-submit gives a script the port of its JVM
# the guard gets the group's number before the process becomes the command
_REPORT_AND_RUN = 'echo $$ >&0; exec "$0" "$@" < /dev/null'
_GUARD = Path(__file__).with_name("guard.py")


class SparkSubmit:
    """Running spark-submit in a separate process group; a context manager that leaves no process behind.

    No process is left even if this one is killed by SIGKILL. Settings that other users of this machine must not read
    are not in its arguments (``hidden``). With ``quiet`` its output is stored, and ``tail`` returns the end of it;
    otherwise it goes to this process's output.
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
            self.ended = os.pidfd_open(self._process.pid)  # readable once the process has ended
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

    def send(self, number: int) -> None:
        """Send a signal to the whole process group; ignored if it has ended."""
        if not self._gone:
            try:
                os.killpg(self._process.pid, number)
            except ProcessLookupError:
                self._gone = True

    def send_to_script(self, number: int) -> bool:
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
        self.send(number)
        self._wait_until_gone(grace_s)
        self.send(signal.SIGKILL)
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
        self.send(0)
        return not self._gone and _is_alive(self._process.pid)

    def tail(self) -> str:
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
    try:
        return {entry.partition(b"=")[0] for entry in Path("/proc", str(pid), "environ").read_bytes().split(b"\0")}
    except OSError:
        return set()


def _processes() -> Iterator[tuple[int, list[bytes]]]:
    """Yield the id of each process, with its state, parent, group and further fields of /proc/PID/stat."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                facts = Path("/proc", entry, "stat").read_bytes().rpartition(b")")[2].split()
            except OSError:  # ended since
                continue
            yield int(entry), facts
