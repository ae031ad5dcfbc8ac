"""Workers forked from one process that has imported TensorFlow, to save the import time.

There is one such process in a session: it starts with the first worker, and ends with the session, as do the workers.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.helpers import leaks

ROOT = Path(__file__).resolve().parents[3]
IMPORTED = ("tensorflow", "keras", "tests.helpers.training.worker")


class Forked:
    """A worker with the part of ``subprocess.Popen`` that tests of groups use."""

    def __init__(self, specification: Path, log: Path, environment: Mapping[str, str]) -> None:
        """Start it; returns once it has a pid. TensorFlow's import uses the environment of the first worker."""
        global _server
        if _server is None:
            with leaks.not_of_this_test():
                _server = Server(environment)
            atexit.register(_server.close)
        self._server = _server
        self.pid = _server.fork(
            {"specification": str(specification), "log": str(log), "environment": dict(environment)}
        )

    @property
    def returncode(self) -> int | None:
        """None while it runs; -9 for signal 9."""
        return self._server.ended.get(self.pid)

    def poll(self) -> int | None:
        """Return ``returncode`` after an update."""
        self._server.listen(0)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Return its exit status; raise TimeoutExpired after that many seconds."""
        deadline = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"worker {self.pid}", timeout)
            self._server.listen(deadline - time.monotonic())
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


class Server:
    """This side of the forking process."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Start it; it imports while its first request waits."""
        self.ended: dict[int, int] = {}
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            cwd=ROOT,
            env={name: value for name, value in environment.items() if name not in ("TF_CONFIG", leaks.MARK)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # an interrupt is for the session
        )
        assert self._process.stdin and self._process.stdout
        self._requests, self._answers = self._process.stdin, self._process.stdout.fileno()
        self._begun = b""

    def fork(self, request: dict[str, Any]) -> int:
        """Fork a worker, and return its pid."""
        self._requests.write(json.dumps(request).encode() + b"\n")
        self._requests.flush()
        while (started := self.listen(None)) is None:
            pass
        return started

    def listen(self, timeout_s: float | None) -> int | None:
        """Wait for a message, at most that many seconds: record ends, and return the pid of a started worker."""
        if not select.select([self._answers], [], [], timeout_s)[0]:
            return None
        if not (received := os.read(self._answers, 1 << 16)):
            raise RuntimeError(f"the process that forks workers has ended: exit status {self._process.wait()}")
        *answers, self._begun = (self._begun + received).split(b"\n")
        started = None
        for answer in map(json.loads, answers):
            if "status" in answer:
                self.ended[answer["pid"]] = answer["status"]
            else:
                started = int(answer["pid"])
        return started

    def close(self) -> None:
        """End it."""
        self._requests.close()
        self._process.wait()


_server: Server | None = None


def serve() -> dict[str, Any] | None:
    """Fork for each request; return the request in a fork, and None in the forking process at the end of the input."""
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    begun = b""
    while True:
        ready, _, _ = select.select([0, woken], [], [])
        if woken in ready:
            os.read(woken, 1 << 10)
            _tell_who_has_ended()
        if 0 in ready:
            if not (received := os.read(0, 1 << 16)):
                return None
            *requests, begun = (begun + received).split(b"\n")
            for request in requests:
                if not (pid := os.fork()):
                    return dict(json.loads(request))
                os.write(1, json.dumps({"pid": pid}).encode() + b"\n")


def _tell_who_has_ended() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        os.write(1, json.dumps({"pid": pid, "status": os.waitstatus_to_exitcode(status)}).encode() + b"\n")


def become(request: dict[str, Any]) -> None:
    """Apply Popen's arguments in a forked worker."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, source in enumerate((nothing, log, log)):
        os.dup2(source, descriptor)
    os.environ.clear()
    os.environ.update(request["environment"])


def main() -> None:
    """Run the forking process, and each of its workers."""
    answers = os.dup(1)  # output of an import is no answer
    os.dup2(2, 1)
    gc.disable()
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # no worker scans TensorFlow's objects for garbage
    gc.enable()
    os.dup2(answers, 1)
    os.close(answers)
    if request := serve():
        become(request)
        from tests.helpers.training import worker

        worker.main(Path(request["specification"]))


if __name__ == "__main__":
    main()
