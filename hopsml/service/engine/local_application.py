"""Run as a program: one application of a job on this machine, which outlives the service that has started it.

    python -m hopsml.service.engine.local_application FOLDER -- COMMAND...

FOLDER gets ``running`` (once: a second application of the same tag ends at once), ``output.log``, and in the end
``ended`` with the exit status. The command is a process group of its own. Room for what is written is taken before the
command begins: a disk that is full by then hides neither that it runs nor how it ended.
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
ROOM = 4096  # bytes of a file that says how it stands


def start_ticks(pid: int) -> int:
    """When a process was started, in the kernel's ticks: with its number it says which process is meant. 0: it is gone."""
    try:
        fields = Path("/proc", str(pid), "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in (b"Z", b"X") else int(fields[19])


def main(folder: Path, command: list[str]) -> None:
    """Claim the folder, run the command, and write down how it ended."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # what ends the service is not for its applications
    try:
        claim = os.open(folder / RUNNING, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        sys.exit(f"{folder} is another application's")
    fresh = folder / f"{ENDED}.new"
    try:
        os.write(claim, b" " * ROOM)
        fresh.write_bytes(b" " * ROOM)
    except OSError as error:
        (folder / RUNNING).unlink()  # nothing has begun
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
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _is_driver(command: list[str]) -> bool:
    """Whether it is Python that runs a task's driver, and not what starts a JVM before."""
    return command[0] == "/usr/bin/env" and str(SCRIPT) in command


def _masked_signals() -> None:
    """Ctrl-C waits until the driver listens for it: while Python starts it would leave a traceback."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    _default_signals()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[3:])
