"""Run a clean-up command when the process that started something has ended, in any way.

    guard = guard_for(["stop-everything", ...])   # in the starter
    guard.dismiss()                               # after an orderly stop

A ``finally`` does not run after kill -9. The guard is a small process in a separate session that waits for its
parent on a pidfd: it does not poll, and a reused pid cannot mislead it.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Guard:
    """Guard process that waits for the end of this process."""

    process: subprocess.Popen[bytes]

    def dismiss(self) -> None:
        """End the guard without running its command."""
        self.process.kill()
        self.process.wait()


def guard_for(command: Sequence[str]) -> Guard:
    """Start a guard that runs ``command`` (from the project's root) once this process has ended.

    Returns when the guard waits. Raises RuntimeError if it did not start.
    """
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).resolve()), str(os.getpid()), *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        start_new_session=True,  # Ctrl-C at a terminal is for the starter
    )
    assert process.stdout is not None
    with process.stdout as answer:
        if answer.readline() != b"on duty\n":
            raise RuntimeError(f"the guard did not start (exit status {process.wait()}): {process.args!r}")
    return Guard(process)


def main(owner: int, command: Sequence[str]) -> None:
    """Wait for the end of ``owner``, then become ``command``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    watched = os.pidfd_open(owner)
    if os.getppid() == owner:  # otherwise it ended before it could be watched, and the pid may be reused
        os.write(1, b"on duty\n")
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        select.select([watched], [], [])
    os.execvp(command[0], list(command))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
