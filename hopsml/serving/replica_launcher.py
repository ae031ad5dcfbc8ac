"""Interface for starting replica processes, locally or on a cluster node, with the local implementation."""

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

from hopsml.core import processes
from hopsml.serving.definitions import ServingFolder
from hopsml.serving.messages import FromReplica, JsonLinesConnection
from hopsml.storage import python_child


class ReplicaConnection(Protocol):
    """Interface of the message connection to a replica."""

    def send(self, message: msgspec.Struct) -> None:
        """Send a message without waiting."""

    async def receive(self) -> object | None:
        """Return the next message; None when the replica has ended."""

    def close(self) -> None:
        """Close this side of the connection."""


class ReplicaProcess(Protocol):
    """Interface of one replica process."""

    pid: int

    @property
    def connection(self) -> ReplicaConnection:
        """Message connection to the replica."""

    @property
    def log_location(self) -> str:
        """Location of the replica's log, as text."""

    def kill(self) -> None:
        """Kill the process of the replica; its connection ends with it."""

    async def wait_for_end(self) -> str:
        """Wait for the process after its connection has ended, and return how it ended."""


class ReplicaLauncher(Protocol):
    """Interface of a replica launcher."""

    async def start_replica(self, number: int) -> ReplicaProcess:
        """Start a new process for a replica, as soon as there is a slot for it.

        If the call is cancelled, no process remains.

        Raises:
            OSError: The process cannot be started.
        """


class LocalReplica:
    """Replica that is a child of this process."""

    def __init__(self, process: subprocess.Popen[bytes], line: JsonLinesConnection, where: str) -> None:
        self._process = process
        self.pid, self.connection, self.log_location = process.pid, line, where

    def kill(self) -> None:
        """Send SIGKILL to the process."""
        self._process.kill()

    async def wait_for_end(self) -> str:
        """Wait for the process, kill it if it does not end with its connection, and return how it ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._process.wait, 5.0)
        if self._process.poll() is None:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
        code = self._process.returncode
        return f"was {processes.describe_exit(-code)}" if code < 0 else f"ended with exit status {code}"


class LocalReplicaLauncher:
    """Replica launcher for this machine; all replicas accept connections from one listening socket."""

    def __init__(self, folder: ServingFolder, listener: socket.socket, threads: int) -> None:
        self._folder, self._listener, self._threads = folder, listener, threads

    async def start_replica(self, number: int) -> LocalReplica:
        """Start a new process for a replica.

        Raises:
            OSError: The process cannot be started.
        """
        return await start_process(self._folder, number, self._listener, self._threads, FromReplica)


async def start_process(
    folder: ServingFolder,
    number: int,
    listener: socket.socket,
    threads: int,
    types: object,
    variables: Mapping[str, str] | None = None,
) -> LocalReplica:
    """Start a replica process on this machine.

    Args:
        folder: Folder of the serving or of the agent.
        number: Number of the replica.
        listener: Listening socket, which the process inherits.
        threads: Number of threads of a model.
        types: Types of the messages that the process sends.
        variables: Additional environment variables.

    Raises:
        OSError: The process or its log cannot be created.
    """
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
    except OSError:  # no memory for a process, or no disk space for its log
        ours.close()
        raise
    try:
        reader, writer = await asyncio.open_connection(sock=ours)
    except BaseException:
        process.kill()
        raise
    return LocalReplica(process, JsonLinesConnection(reader, writer, types), str(log))
