"""Pool of helper processes that hold the clients of remote stores: start, lend, reuse, kill.

A call borrows a process for itself, so that a call that is stuck, and killed at its deadline, affects no other one.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from hopsml.core import settings
from hopsml.storage import python_child
from hopsml.storage.remote.store import FrameChannel

MAX_PROCESSES = 8  # busy at the same time; each takes about 40 MB
_IDLE_KEPT = 4
_IDLE_S = 60.0  # an idle helper is not lent after that: the process ends by itself after 90 s
# Prefixes of variables that a client reads when it is created: a helper started with other values is not reused.
_RELEVANT = (
    "HADOOP_", "KRB5", "FSSPEC_", "AWS_", "AZURE_", "GOOGLE_", "HTTP_", "HTTPS_", "NO_PROXY", "ALL_PROXY", "http_", "https_",
    "no_proxy", "all_proxy", "REQUESTS_CA_BUNDLE", "SSL_CERT_", "USER", "LOGNAME",
)  # fmt: skip


class AllHelpersBusy(TimeoutError):
    """Error: all helper processes that this process may have were busy for the whole deadline."""


@dataclass(eq=False)
class HelperProcess:
    """One running helper process, and the channel to it."""

    process: subprocess.Popen[bytes]
    channel: FrameChannel
    environment: dict[str, str]
    idle_since_s: float = field(default=0.0)
    closings: int = field(default=0)  # number of the pool's closings when it was lent

    def kill(self) -> None:
        """Kill the process at once by SIGKILL, and reap it."""
        self.channel.close()
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """Close the channel, upon which an idle process exits; it is killed after two seconds."""
        self.channel.close()
        try:
            self.process.wait(timeout=2.0)
        except subprocess.TimeoutExpired:
            self.kill()


class HelperPool:
    """Pool of the helper processes of this process; thread-safe; a forked child starts with an empty one."""

    def __init__(self, max_processes: int = MAX_PROCESSES) -> None:
        self._max_processes = max_processes
        self._reset()
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.close)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[HelperProcess] = []
        self._lent: set[HelperProcess] = set()
        self._closings = 0
        self._free = threading.BoundedSemaphore(self._max_processes)

    def _forget(self) -> None:
        """Drop the helpers in a forked child, since they belong to the parent."""
        for helper in self._idle:
            helper.channel.close()
            helper.process.returncode = 0  # a child of the parent process, which this one cannot reap
        self._reset()

    @contextlib.contextmanager
    def lend(self, timeout_s: float) -> Iterator[HelperProcess]:
        """Yield a helper for one call; AllBusy if none is free within ``timeout_s``.

        A call that does not end normally, whatever ended it, leaves the helper in an unknown state: its response may
        still arrive, and would be taken for the next call's. So the helper is killed.
        """
        free = self._free
        if not free.acquire(timeout=timeout_s):
            raise AllHelpersBusy(f"all {self._max_processes} storage helper processes of this process are busy")
        try:
            helper = self._take()
            try:
                self._lent.add(helper)
                yield helper
            except BaseException:
                self._lent.discard(helper)
                helper.kill()
                raise
            self._give_back(helper)
        finally:
            free.release()

    def close(self) -> None:
        """End the idle helpers at once, and the lent ones after their call; a later call starts new ones."""
        with self._lock:
            self._closings += 1
            idle, self._idle = self._idle, []
        for helper in idle:
            helper.end()

    def kill_all(self) -> None:
        """Kill all helpers, busy and stopped (SIGSTOP) ones as well; for a process that exits immediately."""
        with self._lock:
            for helper in (*self._idle, *self._lent):
                helper.process.kill()

    def _take(self) -> HelperProcess:
        wanted = _environment()
        with self._lock:
            stale = [helper for helper in self._idle if not _usable(helper, wanted)]
            self._idle = [helper for helper in self._idle if helper not in stale]
            found, closings = self._idle.pop() if self._idle else None, self._closings
        for helper in stale:
            helper.end()
        taken = found or _start(wanted)
        taken.closings = closings
        return taken

    def _give_back(self, helper: HelperProcess) -> None:
        helper.idle_since_s = time.monotonic()
        with self._lock:
            self._lent.discard(helper)
            if helper.closings == self._closings and len(self._idle) < _IDLE_KEPT:
                self._idle.append(helper)
                return
        helper.end()


def _usable(helper: HelperProcess, environment: dict[str, str]) -> bool:
    return (
        helper.environment == environment
        and time.monotonic() - helper.idle_since_s < _IDLE_S
        and helper.process.poll() is None
    )


def _environment() -> dict[str, str]:
    relevant = {name: value for name, value in os.environ.items() if name.startswith(_RELEVANT)}
    return {**relevant, "HADOOP_CONF_DIR": str(settings.hadoop_conf_dir() or "")}


def _start(environment: dict[str, str]) -> HelperProcess:
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            process = python_child.start(
                "hopsml.storage.remote.server",
                str(theirs.fileno()),
                str(os.getpid()),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
    except BaseException:
        ours.close()
        raise
    return HelperProcess(process, FrameChannel(ours), environment)


POOL = HelperPool()
