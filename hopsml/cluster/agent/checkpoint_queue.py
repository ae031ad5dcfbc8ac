"""Queue of checkpoints that a worker has stored in memory, and the process that writes them to the local disk.

The worker pins a slot, writes the state into it, reports it and continues training. The writer is forked from the fork
server, which has already imported the framework; it is not a child of the worker and outlives it. The mirror brings the
files from the local disk to shared storage.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from hopsml.cluster.forking import fork_client
from hopsml.cluster.forking.fork_client import ForkClient
from hopsml.cluster.shared.commit_slots import ABANDONED, FAILED, PASSED_OVER, WRITTEN, CommitSlots
from hopsml.cluster.shared.framing import receive_frame
from hopsml.cluster.shared.worker_events import CheckpointAwaited, CheckpointSaved
from hopsml.core import processes
from hopsml.core.newer_python import asyncio_wait_for
from hopsml.storage.backoff import Reminder, duration_text, pause_s
from hopsml.storage.run_dir import parse_step_name

WRITER = "hopsml.training.checkpoint_writer"
STORE_S = 1.0  # longest single wait for the mirror, which serves no other request during it
SLOW_S = 1.0  # seconds; if a write takes longer, queued checkpoints that a newer one replaces are skipped
HELD_LIMIT = 3  # consecutive heartbeats for which the writer has been stopped
_TRIES = 2  # a writer that was killed is replaced once
_END_S = 2.0
FIRST_RETRY_S, LONGEST_RETRY_S = 0.5, 5.0  # seconds, after the end of the training


def _series(saved: CheckpointSaved) -> str:
    """Return the path that identifies checkpoints that replace each other: their directory, or the file itself."""
    target = saved.target
    return target if parse_step_name(os.path.basename(target)) is None else os.path.dirname(target)


def _replaces(newer: CheckpointSaved, older: CheckpointSaved) -> bool:
    """Return True if the first is a newer checkpoint of the same series."""
    return newer.number > older.number and _series(newer) == _series(older)


class CheckpointQueue:
    """Queue of one worker's checkpoints; used on its agent's event loop."""

    def __init__(self, server: ForkClient, cwd: Path, note: Callable[[str], None]) -> None:
        """Create the slots; the writer is started with the first checkpoint.

        Args:
            server: fork server of the worker.
            cwd: working directory of the writer.
            note: called with each note for the user.
        """
        self.slots = CommitSlots.create()
        self._server, self._cwd, self._note = server, cwd, note
        self._waiting: list[CheckpointSaved] = []
        self._taken = 0  # number of the newest
        self._writing: CheckpointSaved | None = None
        self._began = 0.0
        self._failed: CheckpointSaved | None = None  # the newest one that failed, which is retried at the end
        self._reason = ""  # why it failed
        # By series: older failed ones that no newer one has replaced, with the reason.
        self._lost: dict[str, tuple[CheckpointSaved, str]] = {}
        self._missed = 0  # failures since the last success
        self._reminder = Reminder()
        self._passed_over = False
        self._task: asyncio.Task[None] | None = None
        self._storing: asyncio.Task[None] | None = None
        self._writer: _Writer | None = None
        self._own_server: ForkClient | None = None  # used if the worker's fork server has ended

    def add(self, saved: CheckpointSaved) -> None:
        """Queue a checkpoint that the worker has written into a slot and pinned; a repeated report is ignored."""
        if saved.number > self._taken:
            self._taken = saved.number
            self._add(saved)

    def _add(self, saved: CheckpointSaved) -> None:
        """Queue a checkpoint, and start writing if that is not in progress."""
        if self._failed is not None and _replaces(saved, self._failed):
            self._give_back(self._failed, FAILED)
            self._failed = None
        self._waiting.append(saved)
        self._pass_over()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._write_all())

    async def close(self, timeout_s: float, retry_s: float = 0.0, cut: asyncio.Event | None = None) -> list[str]:
        """Write the remaining checkpoints, end the writer, and return those that were not written, with the reason.

        Args:
            timeout_s: time limit in seconds.
            retry_s: seconds for which a failed write is retried; it is retried once in any case.
            cut: event that ends the retries early.
        """
        self._stop_waiting()
        deadline = time.monotonic() + timeout_s
        try:
            await self._finish(deadline, time.monotonic() + retry_s, cut or asyncio.Event())
            late = [*([self._writing] if self._writing else []), *self._waiting]
            behind = [f"{one.target}: it was not written in time" for one in late]
            behind += [f"{self._failed.target}: {self._reason}"] if self._failed is not None else []
            behind += [text for saved, text in self._lost.values() if not self._is_abandoned(saved)]
            self._failed, self._lost = None, {}  # the slots are closed now
            return behind
        finally:
            await self._end()

    def signal_when_stored(
        self, request: CheckpointAwaited, has_stored: Callable[[str, float], Awaitable[bool]]
    ) -> None:
        """Signal to the worker when a checkpoint is on shared storage; returns at once, and waits in the background.

        The worker waits only for the newest one.

        Args:
            request: names the checkpoint.
            has_stored: waits for a checkpoint's folder for so many seconds; returns True once it is stored.
        """
        if self._storing is not None:
            self._storing.cancel()
        self._storing = asyncio.create_task(self._await_stored(request, has_stored))

    async def _await_stored(
        self, request: CheckpointAwaited, has_stored: Callable[[str, float], Awaitable[bool]]
    ) -> None:
        """Poll the mirror, which reports any delay itself."""
        while not await has_stored(request.target, STORE_S):
            await asyncio.sleep(STORE_S)
        self.slots.stored_request = request.number

    def _stop_waiting(self) -> None:
        if self._storing is not None:
            self._storing.cancel()

    def discard(self) -> None:
        """Free the memory without writing its content; the writer ends with its fork server."""
        self._stop_waiting()
        self.slots.close()

    async def _finish(self, deadline: float, retry_until: float, cut: asyncio.Event) -> None:
        """Wait for the writes until the deadline, and retry the failed one until ``retry_until``; or until ``cut``."""
        cutting, attempts = asyncio.create_task(cut.wait()), 0
        try:
            while True:
                self._retry_failed()
                left = max(0.0, deadline - time.monotonic())
                if self._task is not None:
                    either: set[asyncio.Task[Any]] = {self._task, cutting}
                    await asyncio.wait(either, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                left = min(deadline, retry_until) - time.monotonic()
                if self._failed is None or left <= 0 or cutting.done():
                    return
                attempts += 1
                await asyncio.wait({cutting}, timeout=min(left, pause_s(attempts, FIRST_RETRY_S, LONGEST_RETRY_S)))
        finally:
            cutting.cancel()

    def _retry_failed(self) -> None:
        """Queue the failed checkpoint again, unless it is abandoned."""
        again, self._failed = self._failed, None
        if again is not None and self._is_abandoned(again):
            self._give_back(again, ABANDONED)
        elif again is not None:
            self._add(again)

    def _is_abandoned(self, saved: CheckpointSaved) -> bool:
        """Return True if the training function has received the error of a failed checkpoint."""
        return self.slots.outcome(saved.slot, saved.number) == ABANDONED

    async def _end(self) -> None:
        """End all processes of the queue and free the slots."""
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

    def check_health(self) -> None:
        """Wake or kill a stopped writer, and skip checkpoints that have been replaced.

        Called with each heartbeat.
        """
        if self._writer is not None and (problem := self._writer.check_health()):
            self._note(problem)
        self._pass_over()

    # ------------------------------------------------------------------------------------------ writing

    async def _write_all(self) -> None:
        """Write the queued checkpoints one after the other."""
        while self._waiting:
            self._writing, self._began = self._waiting.pop(0), time.monotonic()
            problem = await self._write(self._writing)
            saved, self._writing = self._writing, None
            self._conclude(saved, problem)

    async def _write(self, saved: CheckpointSaved) -> str:
        """Write one checkpoint; return the error text, or ""."""
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
        """Start a writer, from a fork server of this queue if the worker's is broken."""
        if self._server.broken:
            await self._end_own_server()
            modules = self._server.modules
            self._server = self._own_server = ForkClient(modules, *fork_client.start_process(modules))
        return await _Writer.start(self._server, self._cwd, self.slots)

    def _conclude(self, saved: CheckpointSaved, problem: str) -> None:
        """Record the outcome of a write, and notify the user of the first failure and of the recovery."""
        if not problem:
            self._give_back(saved, WRITTEN)
            self._lost.pop(_series(saved), None)
            if self._missed:
                self._note(
                    f"checkpoints are written again: {saved.target}; {self._missed} checkpoints could not be "
                    "written before"
                )
            self._missed = 0
            self._reminder.end()
            return
        self._missed += 1
        now = time.monotonic()
        if self._reminder.reschedule_if_due(now):
            since = f" for {duration_text(self._reminder.lasted_s(now))} ({self._missed} attempts failed)" * (
                self._missed > 1
            )
            self._note(f"the checkpoint {saved.target} could not be written{since}, and training continues: {problem}")
        self.slots.record_outcome(saved.slot, saved.number, FAILED, problem)
        if self._failed is not None:
            if not _replaces(saved, self._failed) and not self._is_abandoned(self._failed):
                self._lost[_series(self._failed)] = self._failed, f"{self._failed.target}: {self._reason}"
            self._give_back(self._failed, FAILED)
        self._failed, self._reason = saved, problem
        if any(_replaces(newer, saved) for newer in self._waiting):
            self._give_back(saved, FAILED)
            self._failed = None

    def _pass_over(self) -> None:
        """Skip queued checkpoints that newer ones replace if writing is slow.

        Training then need not wait for a free slot.
        """
        if self._writing is None or time.monotonic() - self._began < SLOW_S:
            return
        for older in [one for one in self._waiting if any(_replaces(newer, one) for newer in self._waiting)]:
            self._waiting.remove(older)
            self._give_back(older, PASSED_OVER)
            if not self._passed_over:
                self._note(f"checkpoints are saved faster than they can be written: {older.target} is skipped")
            self._passed_over = True

    def _give_back(self, saved: CheckpointSaved, outcome: int) -> None:
        """Record the outcome of a checkpoint, unless it is abandoned, and unpin its slot."""
        if not self._is_abandoned(saved):
            self.slots.record_outcome(saved.slot, saved.number, outcome)
        self.slots.pin(saved.slot, False)


class _Writer:
    """Client of the writer process: sends a slot number as one byte, receives a frame with the error text, or ""."""

    def __init__(self, server: ForkClient, identity: int, pid: int, requests: int) -> None:
        self._server, self._identity, self._pid, self._requests = server, identity, pid, requests
        self._answers = asyncio.StreamReader()
        self._transport: asyncio.BaseTransport | None = None
        self._held = 0

    @classmethod
    async def start(cls, server: ForkClient, cwd: Path, slots: CommitSlots) -> _Writer:
        """Fork the writer process; raise ConnectionError if the fork server has gone."""
        (requests_r, requests), (answers, answers_w) = os.pipe(), os.pipe()
        log = os.open(os.devnull, os.O_WRONLY)
        try:
            launched = server.launch("", str(cwd), answers_w, log, slots.descriptors, requests_r, WRITER)
            writer = cls(server, *await launched, requests)
        except BaseException:  # a cancelled start too: no other code closes these descriptors
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
        """Write a slot to disk; return the error text, or "".

        Raises OSError or IncompleteReadError if the process has ended.
        """
        os.write(self._requests, bytes([slot]))
        return (await receive_frame(self._answers)).decode(errors="replace")

    def check_health(self) -> str:
        """Wake a stopped writer, or kill one that remains stopped; return a note for the user, or ""."""
        self._held = self._held + 1 if processes.is_stopped(self._pid) else 0
        who = f"the process that writes checkpoints on this host (process {self._pid})"
        if self._held >= HELD_LIMIT:
            self._server.signal(self._identity, signal.SIGKILL)
            return f"{who} is still stopped (SIGSTOP), and is killed"
        if self._held == 1:
            self._server.signal(self._identity, signal.SIGCONT)
            return f"{who} was stopped (SIGSTOP), and is resumed"
        return ""

    async def close(self) -> None:
        """Kill the process, even during a write: an incomplete checkpoint is never used."""
        os.close(self._requests)
        self._server.signal(self._identity, signal.SIGKILL)
        if self._transport is not None:
            self._transport.close()
        if self._server.broken:
            return
        with contextlib.suppress(ConnectionError, TimeoutError):  # the server ends at this moment, or is stopped
            await asyncio_wait_for(self._server.wait_for_exit(self._identity), _END_S)
