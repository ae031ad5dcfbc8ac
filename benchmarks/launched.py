"""Processes that a benchmark starts, identified by a mark that all their descendants inherit, and killed at its end.

Every process that a launcher leaves, detached or not, has the mark in its environment. The sweep at the end finds it,
even if the benchmark itself was killed (tools/guard.py).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from hopsml.core import processes
from tools.guard import guard_for

MARK = "HOPSML_BENCH_MARK"
POLL_S = 0.02
ROOT = Path(__file__).resolve().parents[1]
# Variables of the caller that would change which Spark, Python or settings a candidate uses.
DROPPED = ("SPARK_", "PYSPARK_", "HADOOP_", "YARN_", "CLASSPATH", "HOPSML_", "TF_", "PYTHON", "RAY_", "VIRTUAL_ENV")


@dataclass(frozen=True)
class Command:
    """One process to start; ``variables`` are added to the cleaned environment."""

    arguments: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)


class Launched:
    """Started processes and all their descendants, as a context that kills every one of them at its end."""

    def __init__(self, commands: Sequence[Command], folder: Path) -> None:
        """Start the processes; ``folder`` receives their output and temporary files, and is for them alone."""
        self.mark = uuid.uuid4().hex
        self.folder = folder
        self.log = folder / "output.log"
        self._guard = guard_for([sys.executable, "-m", "benchmarks.launched", self.mark])
        self.began = time.monotonic()
        with self.log.open("ab") as log:
            self.processes = [self._start(command, log.fileno()) for command in commands]

    def _start(self, command: Command, log: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            list(command.arguments),
            env=environment(command.variables, self.folder) | {MARK: self.mark},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            cwd=self.folder,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        sweep(self.mark)
        for process in self.processes:
            if process.stdin is not None:
                process.stdin.close()
            process.wait()
        self._guard.dismiss()

    def alive(self) -> list[int]:
        """Return the pids of all living processes that carry the mark."""
        return carrying(self.mark)

    def wait_until(self, met: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Wait until ``met`` returns True.

        Args:
            met: called every ``POLL_S`` seconds.
            timeout_s: longest wait in seconds.
            what: description of the condition, for the error message.

        Raises:
            RuntimeError: a process failed or the time is over; contains the end of the output.
        """
        deadline = time.monotonic() + timeout_s
        while not met():
            failed = [str(process.args) for process in self.processes if process.poll() not in (None, 0)]
            if failed:
                raise RuntimeError(f"{failed[0]} failed before {what}:\n{self.tail()}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"{what} has not happened within {timeout_s:g} s:\n{self.tail()}")
            time.sleep(POLL_S)

    def tail(self) -> str:
        """Return the beginning and the end of the processes' output; the cause is in one of them."""
        text = self.log.read_text(errors="replace")
        return text if len(text) <= 4000 else f"{text[:2000]}\n[...]\n{text[-2000:]}"


def environment(variables: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the caller's environment without variables that affect a candidate; TMPDIR is ``folder``."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(DROPPED)}
    temporary = {"TMPDIR": str(folder), "SPARK_LOCAL_DIRS": str(folder), "SPARK_WORKER_DIR": str(folder / "work")}
    return {**kept, **temporary, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT), **variables}


def carrying(mark: str) -> list[int]:
    """Return the living processes with this mark; zombies are not counted."""
    return [pid for pid in processes.processes_with_variable(MARK, mark) if not _has_ended(pid)]


def _has_ended(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return text[text.rindex(")") + 2] in "ZX"


def sweep(mark: str) -> None:
    """Kill all processes that carry the mark, and repeat until none is left: they may be starting others."""
    while pids := carrying(mark):
        for pid in pids:
            processes.kill_quietly(pid)
        time.sleep(0.01)


def end_in_order() -> None:
    """Make SIGTERM end this process as Ctrl-C does, so that the processes it started are killed."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a temporary folder with a short name, as paths of Unix sockets below it are limited in length."""
    return tempfile.TemporaryDirectory(prefix="hb-", ignore_cleanup_errors=True)


if __name__ == "__main__":
    sweep(sys.argv[1])
