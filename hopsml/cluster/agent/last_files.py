"""Storing of a worker's last files on its agent: checkpoints in memory, saved files, the local tree, the last commit.

Storing is retried for a limited time, which a user who cancels the run cuts short. What is still not stored is left on the
host, where it outlives the agent.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from hopsml.cluster.agent import worker_files
from hopsml.cluster.agent.checkpoint_queue import CheckpointQueue
from hopsml.cluster.agent.held_commits import HeldCommits
from hopsml.cluster.agent.local_tree import LocalTree, MissingFiles
from hopsml.cluster.shared.protocol import Formation, Launch
from hopsml.cluster.shared.spec import WorkerGroup
from hopsml.cluster.shared.worker_events import WorkerClosed
from hopsml.core.callbacks import nonblocking_logger
from hopsml.storage import left_files

log = nonblocking_logger("hopsml.agent")


class LastFiles:
    """Last files of one worker, used on its agent's event loop; formation and launch are those at the worker's end."""

    def __init__(self, tree: LocalTree, folder: Path, group: WorkerGroup, note: Callable[[str], None]) -> None:
        """Prepare storing with the group's time limits.

        Args:
            tree: local tree of the run directory.
            folder: scratch folder of the worker.
            group: the worker's group.
            note: called with notes for the user.
        """
        self._tree, self._folder, self._note = tree, folder, note
        self._flush_s, self._retry_s = group.flush_s, group.retry_s
        self._cut = asyncio.Event()  # set if nothing must be retried any longer

    def limit(self, flush_s: float, is_storing: bool) -> None:
        """Reduce the time for storing, as the run fails or is cancelled; ``is_storing``: it may have begun."""
        if is_storing and flush_s < self._flush_s:
            self._cut.set()
            return
        self._flush_s, self._retry_s = min(self._flush_s, flush_s), min(self._retry_s, flush_s)

    async def write_checkpoints(self, queue: CheckpointQueue | None, is_last: bool) -> list[str]:
        """Write the checkpoints that are still in memory to the local disk; return those that could not be written.

        They are retried only if ``is_last``, as a next generation of the run must not be delayed.
        """
        if queue is None:
            return []
        began = time.monotonic()
        behind = await queue.close(self._flush_s, self._retry_s if is_last else 0.0, self._cut)
        took_s = time.monotonic() - began
        self._flush_s, self._retry_s = max(0.0, self._flush_s - took_s), max(0.0, self._retry_s - took_s)
        return behind

    async def store(
        self, formation: Formation, launch: Launch, commits: HeldCommits | None, unwritten: list[str]
    ) -> WorkerClosed:
        """Store all last files and delete the worker's folder; return the report of what is missing.

        Args:
            formation: what all workers of the generation share.
            launch: what is specific to this worker.
            commits: commits of a run whose group may change.
            unwritten: checkpoints that could not be written to the local disk, with the reasons.
        """
        missing = await self.close_tree(formation, launch, commits)
        left = await asyncio.to_thread(self.rescue, formation, launch) if missing.count else ""
        shutil.rmtree(self._folder, ignore_errors=True)
        return WorkerClosed((*unwritten, *missing.texts), len(unwritten) + missing.count, left)

    async def close_tree(self, formation: Formation, launch: Launch, commits: HeldCommits | None) -> MissingFiles:
        """Store the saved files, the tree and the last commit; return the files that are not on shared storage."""
        began, missing = time.monotonic(), list[str]()
        if formation.spec.group.collective:
            note, unsaved = await worker_files.store_saved_files(formation, launch, self._tree, self._folder)
            missing += [unsaved] * bool(unsaved)
            if note:
                self._note(note)
        if commits is None or launch.rank != 0:
            behind = await self._tree.close(self._flush_s, self._retry_s, self._cut)
        else:
            # Concurrently: one after the other would take so long that this agent would be considered lost.
            behind, _ = await asyncio.gather(
                self._tree.close(self._flush_s, self._retry_s, self._cut),
                commits.persist_last(formation, self._retry_s, self._cut),
            )
            missing += await asyncio.to_thread(commits.rescue_last, self._tree.base if self._tree.is_mirrored else None)
        behind = behind.and_also(*missing)
        if behind.count:
            took_s = time.monotonic() - began
            log.warning("%d files not on shared storage after %.1f s: %s", behind.count, took_s, behind.texts)
        return behind

    async def release(self, formation: Formation, launch: Launch, flush_s: float) -> None:
        """Store the last files of a worker that has ended earlier, within ``flush_s`` seconds; note what is not stored."""
        behind = await self._tree.close(flush_s)
        if behind.count and (left := await asyncio.to_thread(self.rescue, formation, launch)):
            self._note(f"{behind.count} files of it are not stored, and are in {left}: {behind.texts[0]}")
        shutil.rmtree(self._folder, ignore_errors=True)

    def rescue(self, formation: Formation, launch: Launch) -> str:
        """Leave the local tree, which is not completely stored, on this host; return ``host:path``, "" if that fails."""
        if not self._tree.is_mirrored or not self._tree.base.is_dir():
            return ""
        try:
            return left_files.rescue_worker_files(self._tree.base, formation.run_id, launch.rank)
        except OSError as error:
            self._note(f"its files could not be left on this host either, and are lost: {error}")
            return ""
