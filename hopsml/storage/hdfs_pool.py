"""Helper processes that hold the HDFS client: start, lend, take back, kill.

A call borrows a process of its own, so that a call that is stuck, and killed at its deadline, harms no other
one.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from hopsml import settings
from hopsml.storage.frames import Channel, ChannelClosed

MAX_PROCESSES = 8  # at work at the same time; each takes about 40 MB
_IDLE_KEPT = 4
_IDLE_S = 60.0  # not lent after that: the process ends by itself after 90 s
# What a client reads when it is made: a process that was started under other values is not used.
_RELEVANT = (
    "HADOOP_USER_NAME",
    "HADOOP_TOKEN_FILE_LOCATION",
    "HADOOP_PROXY_USER",
    "KRB5CCNAME",
    "KRB5_CONFIG",
)


class AllBusy(TimeoutError):
    """No helper became free in time."""


@dataclass
class Helper:
    """One running helper process."""

    process: subprocess.Popen[bytes]
    channel: Channel
    environment: tuple[str, ...]
    idle_since_s: float = field(default=0.0)

    def kill(self) -> None:
        """At once; the process is reaped."""
        self.channel.close()
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """It sees the end of its socket and exits; nothing is under way."""
        self.channel.close()
        try:
            self.process.wait(timeout=2.0)
        except subprocess.TimeoutExpired:
            self.kill()


class Pool:
    """The helper processes of this process. Thread-safe; a forked child starts with an empty one."""

    def __init__(self, max_processes: int = MAX_PROCESSES) -> None:
        self._max_processes = max_processes
        self._reset()
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.close)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[Helper] = []
        self._places = threading.BoundedSemaphore(self._max_processes)

    def _forget(self) -> None:
        """In a forked child: the helpers are the parent's."""
        for helper in self._idle:
            helper.channel.close()
            helper.process.returncode = 0  # not ours to reap
        self._reset()

    @contextlib.contextmanager
    def lend(self, timeout_s: float) -> Iterator[Helper]:
        """A helper for one call. AllBusy when there is none for ``timeout_s``.

        A call that ends with TimeoutError, ChannelClosed or an interrupt leaves the helper in an unknown
        state: it is killed.
        """
        places = self._places
        if not places.acquire(timeout=timeout_s):
            raise AllBusy(f"all {self._max_processes} helper processes of this process are busy")
        try:
            helper = self._take()
            try:
                yield helper
            except (TimeoutError, ChannelClosed, KeyboardInterrupt, SystemExit, GeneratorExit):
                helper.kill()
                raise
            except BaseException:
                self._give_back(helper)
                raise
            self._give_back(helper)
        finally:
            places.release()

    def close(self) -> None:
        """End the idle ones."""
        with self._lock:
            idle, self._idle = self._idle, []
        for helper in idle:
            helper.end()

    def _take(self) -> Helper:
        wanted = _environment()
        with self._lock:
            stale = [helper for helper in self._idle if not _usable(helper, wanted)]
            self._idle = [helper for helper in self._idle if helper not in stale]
            found = self._idle.pop() if self._idle else None
        for helper in stale:
            helper.end()
        return found or _start(wanted)

    def _give_back(self, helper: Helper) -> None:
        helper.idle_since_s = time.monotonic()
        with self._lock:
            if len(self._idle) < _IDLE_KEPT:
                self._idle.append(helper)
                return
        helper.end()


def _usable(helper: Helper, environment: tuple[str, ...]) -> bool:
    return (
        helper.environment == environment
        and time.monotonic() - helper.idle_since_s < _IDLE_S
        and helper.process.poll() is None
    )


def _environment() -> tuple[str, ...]:
    return (str(settings.hadoop_conf_dir() or ""), *(os.environ.get(key, "") for key in _RELEVANT))


def _start(environment: tuple[str, ...]) -> Helper:
    ours, theirs = socket.socketpair()
    parent = own_pidfd()
    try:
        passed = [theirs.fileno(), *([parent] if parent >= 0 else [])]
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "hopsml.storage.hdfs_process",
                str(theirs.fileno()),
                str(parent),
                str(os.getpid()),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=passed,
            cwd="/",  # "-m" puts the working directory on the path
            env=child_environment(),
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
        if parent >= 0:
            os.close(parent)
    return Helper(process, Channel(ours), environment)


def own_pidfd() -> int:
    """A file descriptor that becomes readable when this process ends; -1 on kernels without them."""
    try:
        return os.pidfd_open(os.getpid())
    except (AttributeError, OSError):
        return -1


def child_environment() -> dict[str, str]:
    """This process's, with absolute paths and with what Python found its modules by."""
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    environment.setdefault("TOKIO_WORKER_THREADS", "2")
    conf = settings.hadoop_conf_dir()
    if conf:
        environment["HADOOP_CONF_DIR"] = str(conf)
    token = environment.get("HADOOP_TOKEN_FILE_LOCATION")
    if token:
        environment["HADOOP_TOKEN_FILE_LOCATION"] = os.path.abspath(token)
    return environment


POOL = Pool()
