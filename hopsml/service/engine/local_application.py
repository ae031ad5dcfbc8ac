"""Watcher program that runs one application of a job on this machine and outlives the service.

    python -m hopsml.service.engine.local_application FOLDER -- COMMAND...

FOLDER receives ``running`` (created exclusively: a second application of the same tag ends at once), ``output.log``,
and at the end ``ended`` with the exit status. The command runs in its own process group. Disk space for the state files
is allocated before the command starts, so that a full disk hides neither its start nor its exit status.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from hopsml.service.driver import SCRIPT
from hopsml.storage import durable

RUNNING, ENDED, OUTPUT = "running", "ended", "output.log"
ROOM = 4096  # size of a state file in bytes


def start_ticks(pid: int) -> int:
    """Return the start time of a process in kernel ticks; 0 if it has ended.

    The start time and the process ID together identify a process.
    """
    try:
        fields = Path("/proc", str(pid), "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in (b"Z", b"X") else int(fields[19])


def main(folder: Path, command: list[str]) -> None:
    """Create the folder's state files, run the command, and record its exit status."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # signals that end the service must not end its applications
    try:
        claim = os.open(folder / RUNNING, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        sys.exit(f"{folder} is another application's")
    fresh = folder / f"{ENDED}.new"
    try:
        os.write(claim, b" " * ROOM)
        fresh.write_bytes(b" " * ROOM)
    except OSError as error:
        (folder / RUNNING).unlink()  # nothing has been started
        sys.exit(f"{folder}: {error.strerror}")
    with open(folder / OUTPUT, "ab") as output:
        problem = ""
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,
                preexec_fn=_masked_signals if _is_driver(command) else _default_signals,
            )
        except OSError as error:
            problem = f"{command[0]}: {error.strerror}"
        else:
            facts = {"pid": os.getpid(), "ticks": start_ticks(os.getpid())}
            facts |= {"driver": process.pid, "driver_ticks": start_ticks(process.pid)}
            os.pwrite(claim, json.dumps(facts).encode().ljust(ROOM), 0)
            os.close(claim)
            process.wait()
    status = 127 if problem else process.returncode
    ended = json.dumps({"status": status, "problem": problem[:500], "at_s": time.time()}).encode()
    with open(fresh, "r+b") as file:
        file.write(ended.ljust(ROOM))
    durable.sync_file(fresh)
    fresh.rename(folder / ENDED)
    durable.sync_file(folder)


def _default_signals() -> None:
    """Restore the default actions of the signals that the watcher ignores."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _is_driver(command: list[str]) -> bool:
    """Return True if the command runs a task's driver directly in Python, without a JVM before it."""
    return command[0] == "/usr/bin/env" and str(SCRIPT) in command


def _masked_signals() -> None:
    """Block SIGINT until the driver handles it: during the start of Python it would cause a traceback."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    _default_signals()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[3:])
