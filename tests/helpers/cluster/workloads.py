"""Training functions without a framework, sent to workers by value, that leave traces for tests."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.helpers.clock import WAIT_S as WAIT_S
from tests.helpers.clock import awake as awake
from tests.helpers.clock import wait_until as wait_until

# ------------------------------------------------------------------------------------------ in the worker


def my_rank() -> int:
    from hopsml.cluster.worker.context import current

    context = current()
    assert context is not None
    return context.rank


def leave_trace(folder: str) -> None:
    """Write the pids of this worker, and of a child in a separate session."""
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    server = psutil.Process(os.getppid())
    facts = {"worker": os.getpid(), "child": child.pid, "server": server.pid, "agent": server.ppid()}
    path = Path(folder, f"rank-{my_rank()}.json")
    path.with_suffix(".part").write_text(json.dumps(facts))
    path.with_suffix(".part").rename(path)


def wait_for_files(folder: str, *names: str, timeout_s: float = 600.0) -> None:
    """Wait longer than any test, so that the test times out first."""
    wait_until(lambda: all(Path(folder, name).exists() for name in names), f"{names} in {folder}", timeout_s)


def crash() -> None:
    ctypes.string_at(0)


ENDINGS: dict[str, Callable[[], Any]] = {
    "exception": lambda: {}["no such layer"],
    "sys.exit(3)": lambda: sys.exit(3),
    "os._exit(1)": lambda: os._exit(1),
    "segmentation fault": crash,
    "kill -9": lambda: os.kill(os.getpid(), signal.SIGKILL),
}


def end_badly(folder: str, rank: int, ending: str, workers: int = 2) -> None:
    """Let all workers start; then ``rank`` ends by one of ENDINGS while the others sleep."""
    leave_trace(folder)
    wait_for_files(folder, *(f"rank-{k}.json" for k in range(workers)))
    print(f"rank {my_rank()} is there")
    if my_rank() == rank:
        sys.stdout.flush()
        Path(folder, "failed-at").write_text(repr(time.time()))
        ENDINGS[ending]()
    time.sleep(600)


def sleep_with_trace(folder: str) -> None:
    leave_trace(folder)
    time.sleep(600)


def meet(folder: str, own: str, other: str) -> str:
    """Return only once the other run executes at the same time."""
    Path(folder, own).touch()
    wait_for_files(folder, other)
    return own


def report_steps(folder: str) -> int:
    """Make five steps with a line each, and wait for the test."""
    import hopsml

    for step in range(5):
        hopsml.report(step=step, loss=1.0 / (step + 1))
        print(f"rank {my_rank()} step {step}", flush=True)
    wait_for_files(folder, "go-on")
    return 5


class Trap:
    """Object that does ``action`` in the worker of ``rank`` while the function is unpickled."""

    def __init__(self, action: str, rank: int) -> None:
        self.action, self.rank = action, rank

    def __reduce__(self) -> tuple[Any, ...]:
        return spring, (self.action, self.rank)


def spring(action: str, rank: int) -> str:
    if my_rank() == rank:
        if action == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(600)
    return action


# ------------------------------------------------------------------------------------------ in the test


@dataclass(frozen=True)
class Trace:
    """Pids of one worker, its child, its fork server and its agent."""

    worker: int
    child: int
    server: int
    agent: int


def traces(folder: Path, workers: int = 2, timeout_s: float = WAIT_S) -> list[Trace]:
    """Return the traces written by workers of ``leave_trace``, in rank order; waits for all of them."""
    paths = [folder / f"rank-{rank}.json" for rank in range(workers)]
    wait_until(lambda: all(path.exists() for path in paths), f"{workers} workers", timeout_s)
    return [Trace(**json.loads(path.read_text())) for path in paths]


def living(pids: list[int]) -> list[int]:
    """Return the pids of running processes, without zombies."""
    return [pid for pid in pids if psutil.pid_exists(pid) and _status(pid) not in (None, psutil.STATUS_ZOMBIE)]


def _status(pid: int) -> str | None:
    try:
        return str(psutil.Process(pid).status())
    except psutil.NoSuchProcess:
        return None
