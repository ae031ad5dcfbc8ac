"""The agent's side of a run's sidecar: starts it, passes its words on, and starts another one where it has ended."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from hopsml.cluster.agent.sidecar_spare import SidecarSpare
from hopsml.cluster.shared import processes, protocol
from hopsml.cluster.shared.framing import framed, receive_frame
from hopsml.cluster.worker.sidecar import ADDRESS, PROBLEM, SidecarSeat

MOST_STARTS, STEADY_S = 4, 30.0  # what ends so often, each time within so many seconds of its start, will not stay
HELD_LIMIT = 3  # heartbeats
_ENDS_S = 2.0  # from the end of its input to SIGKILL


class SidecarProcess:
    """One run's sidecar on this agent, whichever process it is by now; ``send`` brings messages to the coordinator."""

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
        """``target``: "module:function". ``folder``: for all processes in this place; removed by ``close``."""
        self.run_id, self.target, self.folder, self._spare = run_id, target, folder, spare
        self._host, self._port_range, self._send = host, port_range, send
        self._process: subprocess.Popen[bytes] | None = None
        self._held = 0  # heartbeats for which it has been stopped
        self._is_closing = False
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    async def run(self) -> None:
        """Keep one alive until ``close``; tells the coordinator of each that begins or ends."""
        ends = 0
        for number in itertools.count():
            began = time.monotonic()
            try:
                reason = await self._one(self.folder / str(number))
            except Exception as error:  # noqa: BLE001 whatever it is, the driver must not wait for its word
                reason = f"it could not be started: {type(error).__name__}: {error}"
            if self._is_closing:
                return
            ends = ends + 1 if time.monotonic() - began < STEADY_S else 1
            self._send(protocol.SidecarEnded(self.run_id, reason, is_final := ends == MOST_STARTS))
            if is_final:
                return

    async def _one(self, folder: Path) -> str:
        """From the start of a process to its end, whose reason is returned."""
        folder.mkdir(mode=0o700)
        address = str(self.folder / ADDRESS)
        seat = SidecarSeat(self.target, self.run_id, self._host, str(folder), address, self._port_range)
        process = self._process = self._spare.take(self.target)
        assert process.stdin is not None and process.stdout is not None
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), process.stdout)
        try:
            with contextlib.suppress(OSError):  # it has ended before it has read a word
                process.stdin.write(framed(msgspec.msgpack.encode(seat)))
                process.stdin.flush()
            while True:
                self._send(protocol.SidecarSaid(self.run_id, await receive_frame(reader)))
        except asyncio.IncompleteReadError:
            status = await asyncio.to_thread(process.wait)
            return f"process {process.pid} on {self._host} was {_how(status, folder / PROBLEM)}"
        finally:
            transport.close()
            with contextlib.suppress(OSError):
                process.stdin.close()
            shutil.rmtree(folder, ignore_errors=True)

    def look_after(self) -> None:
        """With each heartbeat: wake one that is stopped (SIGSTOP), end it where it stays so."""
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
        """End it, and delete what it has kept."""
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
    """What an exit code of Popen's says, and what the process has left as the reason, in words."""
    if code < 0:
        return processes.describe_exit(-code)
    said = problem.read_text()[:1000] if problem.exists() else "see the executor's standard error"
    return f"ended with status {code}: {said}"
