"""The commits of one elastic run that its agent holds: kept between workers, fetched, served, put on shared storage."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from hopsml.cluster.commit_door import CommitDoor, fetch
from hopsml.cluster.commit_slots import CommitSlots
from hopsml.cluster.protocol import Formation

STATE_FILE = "state.hopsml"
DESCRIPTION = "checkpoint.json"
KEEP_CHECKPOINTS = 3
RETRY_S = 0.5

Problem = Callable[[str], None]


class HeldCommits:
    """For one run on one agent; lives on the agent's event loop."""

    def __init__(self, run_id: str, folder: Path, token: str) -> None:
        self.run_id, self.folder = run_id, folder
        self._token = token
        self.slots = CommitSlots.create(folder / "commits")
        self.step, self.slot = -1, -1
        self.door = CommitDoor(token, self._find)
        self._persisted = -1
        self._committed: set[int] = set()  # checkpoints of this agent's own that are kept
        self._persisted_at = time.monotonic()
        self._persisting: asyncio.Task[bool] | None = None

    def committed(self, step: int, slot: int) -> None:
        """The worker has completed a commit."""
        self.step, self.slot = step, slot

    def forget(self) -> None:
        """What is held is not the state that the next generation goes on from."""
        self.step, self.slot = -1, -1

    def _find(self, step: int) -> memoryview | None:
        if step != self.step:
            return None
        try:
            return self.slots.read(self.slot)
        except LookupError:
            return None

    async def close(self) -> None:
        """The run is over, or this agent has left it."""
        if self._persisting is not None:
            await asyncio.gather(self._persisting, return_exceptions=True)
        await self.door.close()
        self.slots.close()
        shutil.rmtree(self.folder / "commits", ignore_errors=True)

    # ------------------------------------------------------------------------------------------ from another agent

    async def obtain(self, formation: Formation) -> None:
        """Have the commit that the generation goes on from; raises OSError or LookupError, naming the holder."""
        if formation.commit_step < 0:
            return
        slot = self.slots.free(self.slot)
        self.slots.begin(slot)

        async def take(position: int, piece: bytes) -> None:
            await asyncio.to_thread(self.slots.put, slot, position, piece)

        length = await fetch(
            formation.commit_holder, formation.commit_certificate, self._token, formation.commit_step, take
        )
        self.slots.complete(slot, formation.commit_step, length)
        self.committed(formation.commit_step, slot)

    # ------------------------------------------------------------------------------------------ to shared storage

    def persist_if_due(self, formation: Formation, problem: Problem) -> None:
        """Put the newest commit on shared storage beside the training, when the last one is old enough."""
        due = time.monotonic() - self._persisted_at >= formation.checkpoint_every_s
        if due and (self._persisting is None or self._persisting.done()):
            self._persisting = asyncio.create_task(self._persist(formation, problem))

    async def persist_last(self, formation: Formation, problem: Problem, patience_s: float = 0.0) -> None:
        """The same at the end, whenever the last one was; a store that is away for a moment is tried again."""
        if self._persisting is not None:
            await asyncio.gather(self._persisting, return_exceptions=True)
        deadline = time.monotonic() + patience_s
        while not await self._persist(formation, problem) and time.monotonic() < deadline:
            await asyncio.sleep(RETRY_S)

    async def _persist(self, formation: Formation, problem: Problem) -> bool:
        """Whether trying again would be of no use: it is there, or it must not be."""
        from hopsml.errors import StorageError
        from hopsml.storage.run_dir import RunEnded

        step, slot = self.step, self.slot
        if step <= self._persisted:
            return True
        self.slots.pin(slot, True)
        try:
            await asyncio.to_thread(self._write_checkpoint, formation, step, slot)
            self._persisted, self._persisted_at = step, time.monotonic()
            return True
        except (OSError, LookupError) as error:
            problem(f"checkpoint of step {step}: {error}")
            # Nor on a full disk of this machine, which nobody will have emptied by then.
            return isinstance(error, RunEnded) or not isinstance(error, StorageError)
        finally:
            self.slots.pin(slot, False)

    def _write_checkpoint(self, formation: Formation, step: int, slot: int) -> None:
        from hopsml.storage import checkpoints
        from hopsml.storage.run_dir import RunDir

        directory = RunDir(formation.run_url, formation.storage_timeout_s)
        directory.check_open()  # this agent may have been cut off while another driver took the run up
        stage = self.folder / "checkpoint"
        stage.mkdir(parents=True, exist_ok=True)
        try:
            content = self.slots.read(slot)
            (stage / STATE_FILE).write_bytes(content)
            if self.slots.step(slot) != step:
                raise LookupError("it was overwritten while it was read")
            (stage / DESCRIPTION).write_text(json.dumps({"step": step, "kind": "elastic", "id": os.urandom(8).hex()}))
            checkpoints.commit(stage, directory.checkpoints, step, formation.storage_timeout_s)
            self._committed.add(step)
            gone = checkpoints.prune(
                directory.checkpoints, KEEP_CHECKPOINTS, formation.storage_timeout_s, known=self._committed
            )
            self._committed.difference_update(gone)
        finally:
            shutil.rmtree(stage, ignore_errors=True)
