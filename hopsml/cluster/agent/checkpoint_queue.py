"""Checkpoints that a worker has left in its agent's memory, and the process that writes them to this machine's disk.

The worker pins a slot, writes the state into it, says so and trains on. The writer is forked from the fork server, where
the framework is imported already; it is no child of the worker and outlives it. From the disk the mirror takes over.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hopsml.cluster.forking import fork_client
from hopsml.cluster.forking.fork_client import ForkClient
from hopsml.cluster.shared import processes
from hopsml.cluster.shared.commit_slots import FAILED, PASSED_OVER, WRITTEN, CommitSlots
from hopsml.cluster.shared.framing import receive_frame
from hopsml.storage.run_dir import step_of

WRITER = "hopsml.training.checkpoint_writer"
SLOW_S = 1.0  # writing that takes longer keeps none waiting for which there is a newer one
HELD_LIMIT = 3  # heartbeats for which the writer has been stopped
_TRIES = 2  # a writer that was killed gets a successor
_END_S = 2.0


@dataclass(frozen=True)
class Saved:
    """A checkpoint in a slot: its number among the worker's, from 1, and the folder, or file, that it is to become."""

    number: int
    slot: int
    target: str

    @property
    def series(self) -> str:
        """What newer ones take its place in: the directory of checkpoints, or the file itself."""
        return self.target if step_of(os.path.basename(self.target)) is None else os.path.dirname(self.target)

    def replaces(self, other: Saved) -> bool:
        """Whether it is a newer one of the same series."""
        return self.number > other.number and self.series == other.series


class CheckpointQueue:
    """For one worker; lives on its agent's event loop."""

    def __init__(self, server: ForkClient, cwd: Path, note: Callable[[str], None]) -> None:
        """``server``: the worker's own. ``cwd``: for the writer to run in. ``note`` is told what people should know."""
        self.slots = CommitSlots.create()
        self._server, self._cwd, self._note = server, cwd, note
        self._waiting: list[Saved] = []
        self._taken = 0  # number of the newest
        self._writing: Saved | None = None
        self._began = 0.0
        self._failed: Saved | None = None  # the newest one, which is tried once more at the end
        self._lost: dict[str, str] = {}  # older ones that nothing has replaced, with the reason; by series
        self._missed = 0  # since writing began to fail
        self._passed_over = False
        self._task: asyncio.Task[None] | None = None
        self._writer: _Writer | None = None
        self._own_server: ForkClient | None = None  # where the worker's has ended

    def add(self, saved: Saved) -> None:
        """The worker has left one in a slot, which it has pinned; it may say so twice."""
        if saved.number > self._taken:
            self._taken = saved.number
            self._add(saved)

    def _add(self, saved: Saved) -> None:
        if self._failed is not None and saved.replaces(self._failed):
            self._give_back(self._failed, FAILED)
            self._failed = None
        self._waiting.append(saved)
        self._pass_over()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._write_all())

    async def close(self, timeout_s: float) -> list[str]:
        """Write the rest within ``timeout_s`` seconds, end the writer; returns what is not there, with the reason."""
        deadline = time.monotonic() + timeout_s
        try:
            await self._finish(deadline)
            late = [*([self._writing] if self._writing else []), *self._waiting]
            behind = [f"{one.target}: it was not written in time" for one in late]
            behind += [f"{self._failed.target}: {self.slots.problem}"] if self._failed is not None else []
            return [*behind, *self._lost.values()]
        finally:
            await self._end()

    def discard(self) -> None:
        """Give the memory back, whatever is in it; the writer ends with its server."""
        self.slots.close()

    async def _finish(self, deadline: float) -> None:
        if self._failed is not None:
            again, self._failed = self._failed, None
            self._add(again)
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=max(0.0, deadline - time.monotonic()))

    async def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._end_writer()
        await self._end_own_server()
        self.slots.close()

    async def _end_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            await writer.close()

    async def _end_own_server(self) -> None:
        server, self._own_server = self._own_server, None
        if server is not None:
            await server.close()

    def look_after(self) -> None:
        """With each heartbeat: a writer that somebody has stopped is woken; once older ones would wait, they go."""
        if self._writer is not None and (problem := self._writer.look_after()):
            self._note(problem)
        self._pass_over()

    # ------------------------------------------------------------------------------------------ writing

    async def _write_all(self) -> None:
        while self._waiting:
            self._writing, self._began = self._waiting.pop(0), time.monotonic()
            problem = await self._write(self._writing)
            saved, self._writing = self._writing, None
            self._conclude(saved, problem)

    async def _write(self, saved: Saved) -> str:
        """What went wrong, or nothing."""
        problem = ""
        for _ in range(_TRIES):
            try:
                self._writer = self._writer or await self._start()
                return await self._writer.write(saved.slot)
            except (OSError, asyncio.IncompleteReadError) as error:
                problem = f"the process that writes checkpoints has ended: {error}"
                await self._end_writer()
        return problem

    async def _start(self) -> _Writer:
        if self._server.broken:
            await self._end_own_server()
            modules = self._server.modules
            self._server = self._own_server = ForkClient(modules, *fork_client.start_process(modules))
        return await _Writer.start(self._server, self._cwd, self.slots)

    def _conclude(self, saved: Saved, problem: str) -> None:
        if not problem:
            self._give_back(saved, WRITTEN)
            self._lost.pop(saved.series, None)
            if self._missed:
                self._note(f"checkpoints are written again: {saved.target}; {self._missed} could not be")
            self._missed = 0
            return
        if not self._missed:
            self._note(f"the checkpoint {saved.target} could not be written, the training goes on: {problem}")
        self._missed += 1
        self.slots.conclude(saved.slot, saved.number, FAILED, problem)
        if self._failed is not None:
            self._give_back(self._failed, FAILED)
            if not saved.replaces(self._failed):
                self._lost[self._failed.series] = f"{self._failed.target}: {problem}"
        self._failed = saved
        if any(newer.replaces(saved) for newer in self._waiting):
            self._give_back(saved, FAILED)
            self._failed = None

    def _pass_over(self) -> None:
        """So that a training never waits long for a slot."""
        if self._writing is None or time.monotonic() - self._began < SLOW_S:
            return
        for older in [one for one in self._waiting if any(newer.replaces(one) for newer in self._waiting)]:
            self._waiting.remove(older)
            self._give_back(older, PASSED_OVER)
            if not self._passed_over:
                self._note(f"checkpoints are saved faster than they can be written: {older.target} is passed over")
            self._passed_over = True

    def _give_back(self, saved: Saved, outcome: int) -> None:
        self.slots.conclude(saved.slot, saved.number, outcome)
        self.slots.pin(saved.slot, False)


class _Writer:
    """The process: one byte, the slot, in; a frame with what went wrong, or nothing, out."""

    def __init__(self, server: ForkClient, identity: int, pid: int, requests: int) -> None:
        self._server, self._identity, self._pid, self._requests = server, identity, pid, requests
        self._answers = asyncio.StreamReader()
        self._transport: asyncio.BaseTransport | None = None
        self._held = 0

    @classmethod
    async def start(cls, server: ForkClient, cwd: Path, slots: CommitSlots) -> _Writer:
        """Raises ConnectionError when the fork server is gone."""
        (requests_r, requests), (answers, answers_w) = os.pipe(), os.pipe()
        log = os.open(os.devnull, os.O_WRONLY)
        try:
            launched = server.launch("", str(cwd), answers_w, log, slots.descriptors, requests_r, WRITER)
            writer = cls(server, *await launched, requests)
        except BaseException:  # a cancelled start as well: nobody else would close them
            os.close(requests)
            os.close(answers)
            raise
        finally:
            for descriptor in (requests_r, answers_w, log):
                os.close(descriptor)
        reading, pipe = asyncio.StreamReaderProtocol(writer._answers), os.fdopen(answers, "rb", buffering=0)
        writer._transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: reading, pipe)
        return writer

    async def write(self, slot: int) -> str:
        """Raises OSError or IncompleteReadError when it has ended."""
        os.write(self._requests, bytes([slot]))
        return (await receive_frame(self._answers)).decode(errors="replace")

    def look_after(self) -> str:
        self._held = self._held + 1 if processes.is_stopped(self._pid) else 0
        who = f"the process that writes checkpoints on this host (process {self._pid})"
        if self._held >= HELD_LIMIT:
            self._server.signal(self._identity, signal.SIGKILL)
            return f"{who} stays stopped; it is ended"
        if self._held == 1:
            self._server.signal(self._identity, signal.SIGCONT)
            return f"{who} was stopped (SIGSTOP); it is woken"
        return ""

    async def close(self) -> None:
        """End it, at once if it is at work: what it writes is incomplete, and nobody takes it."""
        os.close(self._requests)
        self._server.signal(self._identity, signal.SIGKILL)
        if self._transport is not None:
            self._transport.close()
        if self._server.broken:
            return
        with contextlib.suppress(ConnectionError, TimeoutError):  # the server ends this moment, or is stopped
            await asyncio.wait_for(self._server.exited(self._identity), _END_S)
