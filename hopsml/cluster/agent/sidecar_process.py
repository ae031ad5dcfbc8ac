"""Agent's control of a run's sidecar process: starts it, forwards its messages, and replaces it when it has ended.

The process for the next run is started in advance: its imports take half a second of CPU time.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec

from hopsml.cluster.shared import protocol
from hopsml.cluster.shared.framing import framed, receive_frame
from hopsml.cluster.worker.sidecar import ADDRESS, PROBLEM, SidecarSeat
from hopsml.core import processes
from hopsml.storage import python_child


class SidecarSpare:
    """Holder of at most one pre-started sidecar process, for the next run that needs one."""

    def __init__(self) -> None:
        self._target = ""
        self._process: subprocess.Popen[bytes] | None = None

    def process_for(self, target: str) -> subprocess.Popen[bytes]:
        """Return a process for this function, the pre-started one or a new one.

        Call it, and ``prepare``, from the thread that lives as long as the agent: the process is killed when that
        thread ends.

        Raises:
            OSError: if none can be started.
        """
        process, self._process = self._process, None
        if process is not None and self._target == target and process.poll() is None:
            return process
        _end(process)
        return _started(target)

    def prepare(self, target: str) -> None:
        """Start a spare process; an error is ignored here, and reported by the run that needs the process."""
        self.close()
        with contextlib.suppress(OSError):
            self._target, self._process = target, _started(target)

    def close(self) -> None:
        """End the spare process, if there is one."""
        process, self._process = self._process, None
        _end(process)


def _started(target: str) -> subprocess.Popen[bytes]:
    module, _, _ = target.partition(":")
    return python_child.start("hopsml.cluster.worker.sidecar", module, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _end(process: subprocess.Popen[bytes] | None) -> None:
    """Kill a process and close its pipes."""
    if process is None:
        return
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()


SPARE_AFTER_S = 0.5  # seconds from the end of a run's sidecar to the start of the spare one for the next run
MOST_STARTS, STEADY_S = 4, 30.0  # after so many ends, each within so many seconds of its start, it is given up
HELD_LIMIT = 3  # consecutive heartbeats
_ENDS_S = 2.0  # seconds from the end of its input to SIGKILL


class SidecarProcess:
    """One run's sidecar on this agent, across restarts of its process."""

    def __init__(
        self,
        run_id: str,
        target: str,
        host: str,
        port_range: tuple[int, int] | None,
        folder: Path,
        send: Callable[[protocol.Message], None],
        spare: SidecarSpare,
    ) -> None:
        """Create the sidecar's folder; no process is started yet.

        Args:
            run_id: id of the run.
            target: function that the process calls, as "module:function".
            host: address of this agent.
            port_range: (first, last) of the ports that the process may use; None for any.
            folder: scratch folder of all of the sidecar's processes; ``close`` deletes it.
            send: sends a message to the coordinator.
            spare: source of started processes.
        """
        self.run_id, self.target, self.folder, self._spare = run_id, target, folder, spare
        self._host, self._port_range, self._send = host, port_range, send
        self._process: subprocess.Popen[bytes] | None = None
        self._held = 0  # heartbeats for which it has been stopped
        self._is_closing = False
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    async def run(self) -> None:
        """Start the process, and restart it whenever it ends, until ``close``; report each end to the coordinator."""
        ends = 0
        for number in itertools.count():
            began = time.monotonic()
            try:
                reason = await self._one(self.folder / str(number))
            except Exception as error:  # noqa: BLE001 whatever the error, the driver must not wait for a message
                reason = f"the process could not be started: {type(error).__name__}: {error}"
            if self._is_closing:
                return
            ends = ends + 1 if time.monotonic() - began < STEADY_S else 1
            self._send(protocol.SidecarEnded(self.run_id, reason, is_final := ends == MOST_STARTS))
            if is_final:
                return

    async def _one(self, folder: Path) -> str:
        """Run one process to its end, forward its messages, and return the reason of its end."""
        folder.mkdir(mode=0o700)
        address = str(self.folder / ADDRESS)
        seat = SidecarSeat(self.target, self.run_id, self._host, str(folder), address, self._port_range)
        process = self._process = self._spare.process_for(self.target)
        assert process.stdin is not None and process.stdout is not None
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), process.stdout)
        try:
            with contextlib.suppress(OSError):  # it ended before it read anything
                process.stdin.write(framed(msgspec.msgpack.encode(seat)))
                process.stdin.flush()
            while True:
                self._send(protocol.SidecarMessage(self.run_id, await receive_frame(reader)))
        except asyncio.IncompleteReadError:
            status = await asyncio.to_thread(process.wait)
            return f"process {process.pid} on {self._host} was {_how(status, folder / PROBLEM)}"
        finally:
            transport.close()
            with contextlib.suppress(OSError):
                process.stdin.close()
            shutil.rmtree(folder, ignore_errors=True)

    def check_health(self) -> None:
        """Wake a process that is stopped (SIGSTOP); kill one that remains stopped.

        Called with each heartbeat.
        """
        process = self._process
        if process is None or process.poll() is not None:
            return
        self._held = self._held + 1 if processes.is_stopped(process.pid) else 0
        if self._held == 1:
            process.send_signal(signal.SIGCONT)
        elif self._held >= HELD_LIMIT:
            self._held = 0
            process.kill()

    async def close(self) -> None:
        """End the process, and delete its data."""
        self._is_closing = True
        process = self._process
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(process.wait, _ENDS_S)
            process.kill()
            await asyncio.to_thread(process.wait)
        await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)


def _how(code: int, problem: Path) -> str:
    """Describe an exit code of Popen, with the reason that the process has written, if any."""
    if code < 0:
        return processes.describe_exit(-code)
    said = problem.read_text()[:1000] if problem.exists() else "see the standard error of the executor"
    return f"ended with status {code}: {said}"


class SidecarSlot:
    """Sidecar of the run that an agent works for, and the process that is started in advance for the next run."""

    def __init__(
        self,
        folder: Path,
        host: str,
        port_range: tuple[int, int] | None,
        send: Callable[[protocol.Message], None],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        """Create the slot; no process is started yet.

        Args:
            folder: scratch folder of the agent.
            host: address of the agent.
            port_range: as of ``SidecarProcess``.
            send: sends a message to the coordinator.
            spawn: runs a coroutine in the background.
        """
        self._folder, self._host, self._port_range = folder, host, port_range
        self._send, self._spawn = send, spawn
        self._sidecar: SidecarProcess | None = None
        self._spare = SidecarSpare()

    def start_for(self, formation: protocol.Formation) -> Path | None:
        """Start the run's sidecar unless it runs already, and return its folder; None if the run needs none.

        It serves all generations on this agent.
        """
        run_id, target = formation.run_id, formation.spec.sidecar
        if self._sidecar is not None and self._sidecar.run_id != run_id:
            self._spawn(self._sidecar.close())
            self._sidecar = None
        if not target:
            return None
        folder = self._folder / f"{run_id}-sidecar"
        if self._sidecar is None:
            where = (self._host, self._port_range, folder)
            self._sidecar = SidecarProcess(run_id, target, *where, self._send, self._spare)
            self._spawn(self._sidecar.run())
        return folder

    def check_health(self) -> None:
        """Wake or kill a stopped sidecar; called with each heartbeat."""
        if self._sidecar is not None:
            self._sidecar.check_health()

    def release(self, run_id: str) -> None:
        """End the sidecar of this run in the background, and start a spare process for the next run."""
        if self._sidecar is not None and self._sidecar.run_id == run_id:
            sidecar, self._sidecar = self._sidecar, None
            self._spawn(self._end(sidecar))

    async def _end(self, sidecar: SidecarProcess) -> None:
        await sidecar.close()
        await asyncio.sleep(SPARE_AFTER_S)  # an agent without a further run has exited by then
        if self._sidecar is None:
            self._spare.prepare(sidecar.target)

    async def close(self) -> None:
        """End the sidecar."""
        if self._sidecar is not None:
            await self._sidecar.close()

    def close_spare(self) -> None:
        """End the spare process; called after the tasks in the background, which may start it."""
        self._spare.close()
