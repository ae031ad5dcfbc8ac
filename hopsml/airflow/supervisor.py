"""Supervisor of one local driver: ``python -m hopsml.airflow.supervisor FOLDER LOCK_FD``.

It reads the order as JSON from standard input. It is detached from the process that started it; the file lock that it
inherits shows that it is alive. On SIGTERM it ends the driver with all processes that the driver started; it writes
``exit.json`` last. It uses only the standard library and hopsml's process control: it is small, and independent of
Airflow.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from hopsml.cluster.shared import processes
from hopsml.core import redact
from hopsml.tracking import machine

INTERRUPT_S = 15.0  # for the driver to cancel its run and write its files
TERMINATE_S = 5.0
SERVER = b"\0-m\0hopsml.serving.supervisor\0"  # part of its command line
_ENDS = (signal.SIGTERM,)


class _Ended(BaseException):
    """Raised by the handler of SIGTERM."""


def main(folder: Path) -> None:
    """Read the order, detach from the starting process, and run the driver to its end."""
    order = json.load(sys.stdin)
    if os.fork():  # the starter waits only for this process, and has no child to reap later
        os._exit(0)
    os.setsid()
    processes.become_subreaper()
    signal.signal(signal.SIGTERM, _on_sigterm)
    try:
        state, detail = _run(order, folder)
    except OSError as error:
        state, detail = "FAILED", f"{order['command'][0]} could not be started: {error}"
    _write(folder / "exit.json", {"state": state, "detail": detail, "ended": time.time()})


def _run(order: dict[str, Any], folder: Path) -> tuple[str, str]:
    """Run the driver, and return its end state and an explanation.

    ``job.json`` records the process to signal.
    """
    driver: subprocess.Popen[bytes] | None = None
    stays: Callable[[int], bool] = processes.nobody
    try:
        line = redact.command(order["command"])
        _write(folder / "job.json", {"command": line, "keeper": machine.who(), "started": time.time()})
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)  # blocked until ``driver`` is set
        driver = _start(order)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDS)
        code = driver.wait()
        stays = _serves
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    except _Ended:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if driver is not None:
            _end(driver)
        return "KILLED", "it was ended by its task"
    finally:
        processes.end_descendants(stays=stays)
    if code == 0:
        return "SUCCEEDED", ""
    if code < 0:
        return "FAILED", f"the driver was killed by signal {-code} ({signal.Signals(-code).name})"
    return "FAILED", f"the driver left with exit status {code}"


def _serves(pid: int) -> bool:
    """Return True for a server process of ``hopsml.serving``, which outlives its starter unless that is ended early."""
    try:
        return SERVER in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _start(order: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start the driver so that it ends with this process."""
    me = os.getpid()

    def begin() -> None:
        processes.die_with_parent(me)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDS)

    return subprocess.Popen(
        order["command"], env=order["environment"], stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=begin
    )


def _end(driver: subprocess.Popen[bytes]) -> None:
    """Interrupt the driver as Ctrl-C does, so that it cancels its run; then terminate it, then kill it."""
    for number, patience_s in ((signal.SIGINT, INTERRUPT_S), (signal.SIGTERM, TERMINATE_S)):
        processes.kill_quietly(driver.pid, number)
        try:
            driver.wait(patience_s)
            return
        except subprocess.TimeoutExpired:
            continue
    processes.kill_group_quietly(driver.pid)
    driver.wait()


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    """Unwind the main thread on SIGTERM."""
    raise _Ended


def _write(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file atomically."""
    aside = path.with_suffix(".tmp")
    aside.write_text(json.dumps(content))
    os.replace(aside, path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
