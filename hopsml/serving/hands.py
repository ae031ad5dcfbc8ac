"""Who starts a replica's process: the supervisor itself on this machine, or an agent on a node of a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import Protocol

import msgspec

from hopsml.cluster.shared import processes
from hopsml.serving.messages import FromReplica, Line
from hopsml.serving.places import ServingFolder
from hopsml.storage import python_child


class ReplicaLine(Protocol):
    """What is said to a replica, and what it says."""

    def send(self, message: msgspec.Struct) -> None:
        """Does not wait."""

    async def receive(self) -> object | None:
        """The next message; None when the replica is gone."""

    def close(self) -> None:
        """Hear it no longer."""


class ReplicaProcess(Protocol):
    """One process of a replica."""

    pid: int

    @property
    def line(self) -> ReplicaLine:
        """To it."""

    @property
    def where(self) -> str:
        """Its log, in words."""

    def kill(self) -> None:
        """End it at once; its line ends with it."""

    async def ended(self) -> str:
        """When its line has ended: wait for the process, and say how it ended."""


class Hands(Protocol):
    """Starts replicas."""

    async def start(self, number: int) -> ReplicaProcess:
        """A new process for this replica, when there is a place for it. Raises OSError where it cannot be started.

        Who does not want it any more cancels the call; then nothing runs.
        """


class LocalProcess:
    """A child of this process."""

    def __init__(self, process: subprocess.Popen[bytes], line: Line, where: str) -> None:
        self._process = process
        self.pid, self.line, self.where = process.pid, line, where

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()

    async def ended(self) -> str:
        """The line has ended, so the process has, or will at once."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._process.wait, 5.0)
        if self._process.poll() is None:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
        code = self._process.returncode
        return f"was {processes.describe_exit(-code)}" if code < 0 else f"ended with exit status {code}"


class LocalHands:
    """Replicas on this machine that accept from one listening socket."""

    def __init__(self, folder: ServingFolder, listener: socket.socket, threads: int) -> None:
        self._folder, self._listener, self._threads = folder, listener, threads

    async def start(self, number: int) -> LocalProcess:
        """As ``Hands.start``."""
        return await start_process(self._folder, number, self._listener, self._threads, FromReplica)


async def start_process(
    folder: ServingFolder,
    number: int,
    listener: socket.socket,
    threads: int,
    types: object,
    variables: Mapping[str, str] | None = None,
) -> LocalProcess:
    """A replica's process. ``threads``: of a model's; ``types``: of the messages that come from it. Raises OSError."""
    ours, theirs = socket.socketpair()
    limits = {name: str(threads) for name in ("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS")}
    environment = {**limits, "TF_CPP_MIN_LOG_LEVEL": "2", **python_child.environment(), **(variables or {})}
    numbers = map(str, (number, listener.fileno(), theirs.fileno(), os.getpid()))
    log = folder.replica_log(number)
    try:
        with theirs, log.open("ab") as output:
            process = subprocess.Popen(
                [os.path.abspath(sys.executable), "-m", "hopsml.serving.replica", str(folder.path), *numbers],
                pass_fds=(listener.fileno(), theirs.fileno()),
                cwd="/",
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
    except OSError:  # no room for one more process, or for its log
        ours.close()
        raise
    try:
        reader, writer = await asyncio.open_connection(sock=ours)
    except BaseException:
        process.kill()
        raise
    return LocalProcess(process, Line(reader, writer, types), str(log))
