"""Both ends of a zygote: the driver starts it, an agent asks it for a fork server; see ``zygote.py``."""

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
HELD_LIMIT = 3  # looks that find it stopped


class ZygoteProcess:
    """The driver's end: a process that imports ``modules``, under ``name`` until it is closed."""

    def __init__(self, modules: tuple[str, ...], variables: Mapping[str, str] | None = None) -> None:
        """Starts it; does not wait for its imports. ``variables`` of the agents that differ from ours. Raises OSError."""
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
                stderr=subprocess.DEVNULL,  # its children write where their agents do; the agents tell why an import failed
                pass_fds=descriptors,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Pid of the zygote's process."""
        return self._process.pid

    def look_after(self) -> str:
        """With each second: one that is stopped is woken, or ended where that does not help; what people should know.

        Agents whose server it was about to fork start processes of their own when it ends.
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
        """End the zygote. Fork servers that were forked from it stay until their agents end."""
        self._control.close()
        try:
            self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:  # it may hang in an import
            self._process.kill()
            self._process.wait()


class Adopted:
    """A fork server that a zygote has forked for this agent; what is used of ``subprocess.Popen``."""

    def __init__(self, connection: socket.socket, mark: str) -> None:
        self.mark, self.pid = mark, -1
        self.returncode: int | None = None
        self._connection = connection

    def poll(self) -> int | None:
        """Its exit status, negative for a signal; None while it lives."""
        if self.returncode is None and select.select([self._connection], [], [], 0)[0]:
            data = b""
            with contextlib.suppress(OSError):
                data = self._connection.recv(zygote.MAX_REQUEST)
            self._connection.close()
            # Without a word: the zygote went first, so nobody knows.
            self.returncode = (
                os.waitstatus_to_exitcode(zygote.decode_exited.decode(data).status) if data else -signal.SIGKILL
            )
        return self.returncode

    def withdraw(self) -> None:
        """Give it up: where it has not been forked yet, it ends as soon as it is."""
        if self.returncode is None:
            self._connection.close()
            self.returncode = -signal.SIGKILL

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, ``timeout`` seconds at most; returns the exit status. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            select.select([self._connection], [], [], timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired("fork server", timeout or 0.0)
        return code


def adopt(name: str, modules: tuple[str, ...], environment: Mapping[str, str], theirs: socket.socket) -> Adopted | None:
    """Ask the zygote of this name for a fork server at the other end of ``theirs``.

    None when there is none on this machine, or it is another user's. It may still close ``theirs``, instead of serving.
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
