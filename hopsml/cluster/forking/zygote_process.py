"""Both ends of a zygote: the driver starts it, and an agent requests a fork server from it; see ``zygote.py``."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping

from hopsml.cluster.forking import zygote
from hopsml.cluster.forking.fork_environment import MARK, MARK_LENGTH, environment_of, own_sys_path
from hopsml.cluster.shared import processes

CONNECT_S = 0.5
CLOSE_S = 1.0
HELD_LIMIT = 3  # checks in a row that find it stopped


class ZygoteProcess:
    """Driver's end of a zygote: a process that imports ``modules`` and accepts requests under ``name`` until closed."""

    def __init__(self, modules: tuple[str, ...], variables: Mapping[str, str] | None = None) -> None:
        """Start the process, without waiting for its imports.

        Args:
            modules: Modules to import.
            variables: Environment variables of the agents that differ from this process's.

        Raises:
            OSError: The process cannot be started.
        """
        self.modules = modules
        self._held = 0
        self.name = f"hopsml-zygote-{secrets.token_hex(16)}"
        self._control, control = socket.socketpair()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with listener, control:
            listener.bind(f"\0{self.name}")
            listener.listen(256)
            descriptors = [listener.fileno(), control.fileno()]
            self._process = subprocess.Popen(
                [sys.executable, "-m", zygote.__name__, *map(str, descriptors), *modules],
                env=environment_of({**os.environ, **(variables or {})}, "-" * MARK_LENGTH),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                # its children write where their agents do; the agents report why an import failed
                stderr=subprocess.DEVNULL,
                pass_fds=descriptors,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Pid of the zygote's process."""
        return self._process.pid

    def check_health(self) -> str:
        """Resume a stopped zygote, or end one that stays stopped; called once a second.

        If it ends, agents whose fork server it was about to fork start other processes.

        Returns:
            A text for users; "" if there is nothing to report.
        """
        self._held = self._held + 1 if processes.is_stopped(self.pid) else 0
        who = f"the process that imports for the workers of this machine ({self.pid})"
        if self._held == 1:
            self._process.send_signal(signal.SIGCONT)
            return f"{who} was stopped (SIGSTOP); it is woken"
        if self._held == HELD_LIMIT:
            self._process.kill()
            return f"{who} stays stopped; it is ended"
        return ""

    def close(self) -> None:
        """End the zygote process; fork servers that were forked from it continue until their agents end."""
        self._control.close()
        try:
            self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:  # it may hang in an import
            self._process.kill()
            self._process.wait()


class Adopted:
    """Fork server that a zygote has forked for this agent, with a part of the interface of ``subprocess.Popen``."""

    def __init__(self, connection: socket.socket, mark: str) -> None:
        self.mark, self.pid = mark, -1
        self.returncode: int | None = None
        self._connection = connection

    def poll(self) -> int | None:
        """Return its exit status, negative for a signal; None while it runs."""
        if self.returncode is None and select.select([self._connection], [], [], 0)[0]:
            data = b""
            with contextlib.suppress(OSError):
                data = self._connection.recv(zygote.MAX_REQUEST)
            self._connection.close()
            # Without data the zygote has ended before it, so the status is unknown.
            self.returncode = (
                os.waitstatus_to_exitcode(zygote.decode_exited.decode(data).status) if data else -signal.SIGKILL
            )
        return self.returncode

    def withdraw(self) -> None:
        """Abandon the fork server: if it has not been forked yet, it ends right after the fork."""
        if self.returncode is None:
            self._connection.close()
            self.returncode = -signal.SIGKILL

    def wait(self, timeout: float | None = None) -> int:
        """Wait at most ``timeout`` seconds for its end, and return the exit status.

        Raises:
            subprocess.TimeoutExpired: It has not ended in time.
        """
        if self.returncode is None:
            select.select([self._connection], [], [], timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired("fork server", timeout or 0.0)
        return code


def adopt(name: str, modules: tuple[str, ...], environment: Mapping[str, str], theirs: socket.socket) -> Adopted | None:
    """Request a fork server at the other end of ``theirs`` from the zygote of this name.

    The zygote may still close ``theirs`` instead of serving.

    Args:
        name: Name of the zygote.
        modules: Modules that the fork server has to have imported.
        environment: Variables of the fork server.
        theirs: The fork server's end of the socket pair.

    Returns:
        The fork server; None if there is no such zygote on this machine, or it is another user's.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(CONNECT_S)
    try:
        connection.connect(f"\0{name}")
        if not zygote.is_own_user(connection):
            raise ConnectionError(f"the zygote {name} is not of this user")
        request = zygote.ForkRequest(
            executable=sys.executable,
            modules=modules,
            environment=dict(environment),
            sys_path=tuple(own_sys_path()),
            cwd=os.getcwd(),
        )
        socket.send_fds(connection, [zygote.encode(request)], [theirs.fileno(), 2])
    except OSError:
        connection.close()
        return None
    connection.settimeout(None)
    return Adopted(connection, environment[MARK])
