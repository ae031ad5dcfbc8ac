"""Tests of checkpoints from an agent's memory to its disk: a real fork server, a real writer, and failures."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from hopsml.cluster.agent import checkpoint_queue
from hopsml.cluster.agent.checkpoint_queue import CheckpointQueue
from hopsml.cluster.forking import fork_client
from hopsml.cluster.forking.fork_client import ForkClient
from hopsml.cluster.shared.commit_slots import ABANDONED, FAILED, PASSED_OVER, SLOTS, WAITS, WRITTEN
from hopsml.cluster.shared.worker_events import CheckpointAwaited, CheckpointSaved
from hopsml.cluster.worker.context import CheckpointPort
from hopsml.errors import StorageTimeout
from hopsml.storage import checkpoints
from hopsml.training import checkpoint_writer
from hopsml.training.checkpoint_files import CheckpointDescription
from hopsml.training.checkpoint_writer import CheckpointSender, HeldCheckpoint, pack
from tests.helpers import clock, small_disk
from tests.integration.cluster import plain_checkpoints
from tests.integration.cluster.plain_checkpoints import found

pytestmark = pytest.mark.local
PATIENCE_S = 20.0


class Agent:
    """A fork server, a queue, and a worker's end of it in this process."""

    def __init__(self, server: ForkClient, folder: Path) -> None:
        self.server, self.folder, self.directory = server, folder, folder / "run" / "checkpoints"
        self.notes: list[str] = []
        self.loop = asyncio.get_running_loop()
        self.queue = CheckpointQueue(server, folder, self.notes.append)
        self.handover = CheckpointSender(CheckpointPort(self.queue.slots, self._hear))

    def _hear(self, event: CheckpointSaved | CheckpointAwaited) -> None:
        if isinstance(event, CheckpointAwaited):
            self.queue.slots.stored_request = event.number
        elif threading.current_thread() is threading.main_thread():
            self.queue.add(event)
        else:
            asyncio.run_coroutine_threadsafe(self._add(event), self.loop).result()

    async def _add(self, saved: CheckpointSaved) -> None:
        self.queue.add(saved)

    def save(self, step: int, **named: Any) -> HeldCheckpoint:
        return plain_checkpoints.save(self.handover, self.directory, step, **named)

    def save_file(self, path: Path, content: int) -> HeldCheckpoint:
        return plain_checkpoints.save_file(self.handover, path, content)

    def hold(self, held: bool) -> None:
        """Make the writer wait before it writes the state, or let it continue."""
        (self.folder / "run").mkdir(exist_ok=True)
        path = self.folder / "run" / "hold"
        path.touch() if held else path.unlink()

    async def writer(self) -> int:
        """Its process, once it is at work."""
        path = self.folder / "run" / "writer"
        await until(lambda: path.exists() and path.read_text())
        pid = int(path.read_text())
        path.unlink()
        return pid

    async def written(self) -> None:
        """Wait until no checkpoint is pending."""
        await until(lambda: self.queue._task is None or self.queue._task.done())

    def outcome(self, held: HeldCheckpoint) -> int:
        return self.queue.slots.outcome(held.slot, held.number)


async def until(condition: Callable[[], Any]) -> None:
    deadline = clock.awake() + PATIENCE_S
    while not condition():
        assert clock.awake() < deadline
        await asyncio.sleep(0.005)


def play(folder: Path, scenario: Callable[[Agent], Awaitable[None]], *modules: str) -> None:
    async def life() -> None:
        server = ForkClient(modules, *fork_client.start_process(modules))
        agent = Agent(server, folder)
        try:
            await asyncio.wait_for(scenario(agent), 2 * PATIENCE_S)
        finally:
            await agent.queue.close(0.0)
            await server.close()

    asyncio.run(life())


def test_saved_checkpoints_are_written_and_older_ones_deleted(tmp_path: Path) -> None:
    async def scenario(agent: Agent) -> None:
        for step in (10, 20, 30, 30):
            held = agent.save(step, keep=2)
            await agent.written()
            assert agent.outcome(held) == WRITTEN and held.slot == 0, "memory of one state is enough"
        assert found(agent.directory) == [20, 30] and checkpoints.read_retention(agent.directory) == 2
        checkpoints.verify_checksums(agent.directory / "step-000000030")
        assert not list(agent.directory.glob(".step-*"))
        assert (agent.directory / "step-000000030" / "variables.npz").stat().st_mode & 0o777 == 0o600
        assert await agent.queue.close(1.0) == [] and agent.notes == []

    play(tmp_path, scenario)


def test_writer_is_a_separate_interpreter_if_forking_is_unsafe(tmp_path: Path) -> None:
    async def scenario(agent: Agent) -> None:
        assert (await agent.server.ready).mode == "spawn"
        agent.save(1)
        agent.save(2)
        assert await agent.queue.close(PATIENCE_S) == []
        assert found(agent.directory) == [1, 2]

    play(tmp_path, scenario, "tests.integration.cluster.threaded")


def test_close_waits_for_saved_checkpoints_and_names_unwritten_ones(tmp_path: Path) -> None:
    async def scenario(agent: Agent) -> None:
        agent.hold(True)
        agent.save(1)
        await agent.writer()
        agent.save(2)
        (unwritten, other) = await agent.queue.close(0.1)
        assert (
            unwritten == f"{agent.directory}/step-000000001: it was not written in time" and "step-000000002" in other
        )
        assert found(agent.directory) == []
        agent.hold(False)
        await agent.server.close()
        other_agent = Agent(ForkClient((), *fork_client.start_process(())), agent.folder)
        other_agent.save(3)
        other_agent.save(4)
        assert await other_agent.queue.close(PATIENCE_S) == []
        assert found(agent.directory) == [3, 4]
        await other_agent.server.close()

    play(tmp_path, scenario)


def test_killed_writer_is_replaced(tmp_path: Path) -> None:
    async def scenario(agent: Agent) -> None:
        agent.hold(True)
        held = agent.save(1)
        os.kill(await agent.writer(), signal.SIGKILL)
        await agent.writer()
        agent.hold(False)
        await agent.written()
        assert agent.outcome(held) == WRITTEN and found(agent.directory) == [1] and agent.notes == []

    play(tmp_path, scenario)


def test_stopped_writer_is_resumed(tmp_path: Path) -> None:
    async def scenario(agent: Agent) -> None:
        agent.hold(True)
        agent.save(1)
        os.kill(await agent.writer(), signal.SIGSTOP)
        agent.hold(False)
        while not agent.notes:
            agent.queue.check_health()
            await asyncio.sleep(0.005)
        await agent.written()
        assert found(agent.directory) == [1]
        (note,) = agent.notes
        assert "was stopped (SIGSTOP), and is resumed" in note

    play(tmp_path, scenario)


def test_end_of_the_fork_server_loses_no_checkpoint(tmp_path: Path) -> None:
    async def scenario(agent: Agent) -> None:
        agent.hold(True)
        agent.save(1)
        await agent.writer()
        agent.save(2)
        os.kill(agent.server.pid, signal.SIGKILL)
        agent.hold(False)
        assert await agent.queue.close(PATIENCE_S) == []
        assert found(agent.directory) == [1, 2]

    play(tmp_path, scenario)


def test_slow_disk_skips_all_but_the_newest_checkpoint_of_each_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_queue, "SLOW_S", 0.0)

    async def scenario(agent: Agent) -> None:
        agent.hold(True)
        agent.save(1)
        await agent.writer()
        second, third = agent.save(2), agent.save(3)
        assert (agent.outcome(second), agent.outcome(third)) == (PASSED_OVER, WAITS)
        other = agent.folder / "run" / "other"
        plain_checkpoints.save(agent.handover, other, 1)
        agent.hold(False)
        assert await agent.queue.close(PATIENCE_S) == []
        assert found(agent.directory) == [1, 3] and found(other) == [1]
        (note,) = agent.notes
        assert "saved faster than they can be written" in note and "step-000000002 is skipped" in note

    play(tmp_path, scenario)


def test_file_is_replaced_atomically_despite_a_killed_writer(tmp_path: Path) -> None:
    async def scenario(agent: Agent) -> None:
        file = agent.directory / "best.npz"
        agent.directory.mkdir(parents=True)
        agent.save_file(file, 1)
        await agent.written()
        agent.hold(True)
        agent.save_file(file, 2)
        os.kill(await agent.writer(), signal.SIGKILL)
        assert plain_checkpoints.read_file(file) == 1
        agent.hold(False)
        await agent.written()
        assert plain_checkpoints.read_file(file) == 2
        assert sorted(path.name for path in agent.directory.iterdir()) == ["best.npz", "best.npz.txt"]
        assert file.stat().st_mode & 0o777 == 0o600

    play(tmp_path, scenario)


def test_slow_disk_receives_the_last_version_of_every_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_queue, "SLOW_S", 0.0)

    async def scenario(agent: Agent) -> None:
        agent.hold(True)
        agent.directory.mkdir(parents=True)
        one, other = agent.directory / "1.npz", agent.directory / "2.npz"
        agent.save_file(one, 1)
        await agent.writer()
        second, third = agent.save_file(other, 2), agent.save_file(one, 3)
        assert (agent.outcome(second), agent.outcome(third)) == (WAITS, WAITS), "each is a file of its own"
        waits = asyncio.create_task(asyncio.to_thread(agent.save_file, one, 4))
        await asyncio.sleep(0)
        agent.hold(False)
        await waits
        assert await agent.queue.close(PATIENCE_S) == []
        assert [plain_checkpoints.read_file(file) for file in (one, other)] == [4, 2]

    play(tmp_path, scenario)


@pytest.mark.parametrize("emptied", [True, False])
def test_close_names_every_file_that_a_full_disk_did_not_store(tmp_path: Path, emptied: bool) -> None:
    async def scenario(agent: Agent) -> None:
        with small_disk.mounted(tmp_path / "run" / "checkpoints", 1000) as disk:
            small_disk.fill(disk)
            for name in ("1.npz", "2.npz", "2.npz"):
                held = agent.save_file(disk / name, 1)
                await agent.written()
            assert agent.outcome(held) == FAILED
            if emptied:
                (disk / "filler").unlink()
            unwritten = await agent.queue.close(PATIENCE_S)
            assert [one.partition(": ")[0] for one in unwritten] == [
                *([] if emptied else [f"{disk}/2.npz"]), f"{disk}/1.npz"
            ]  # fmt: skip
            assert all("No space left" in one for one in unwritten)

    play(tmp_path, scenario)


def test_each_file_that_is_not_stored_has_its_own_reason(tmp_path: Path) -> None:
    async def scenario(agent: Agent) -> None:
        (tmp_path / "file").touch()
        with small_disk.mounted(tmp_path / "run" / "checkpoints", 1000) as disk:
            small_disk.fill(disk)
            for path in (disk / "1.npz", tmp_path / "file" / "2.npz"):
                agent.save_file(path, 1)
                await agent.written()
            reasons = dict(one.split(": ", 1) for one in await agent.queue.close(PATIENCE_S))
            assert list(reasons) == [f"{tmp_path}/file/2.npz", f"{disk}/1.npz"]
            assert "No space left" in reasons[f"{disk}/1.npz"]
            assert "No space left" not in reasons[f"{tmp_path}/file/2.npz"]

    play(tmp_path, scenario)


def test_file_whose_error_the_function_has_received_is_neither_retried_nor_missing(tmp_path: Path) -> None:
    async def scenario(agent: Agent) -> None:
        with small_disk.mounted(tmp_path / "run" / "checkpoints", 1000) as disk:
            small_disk.fill(disk)
            held = agent.save_file(disk / "1.npz", 1)
            await agent.written()
            assert agent.handover.abandon_failed(".h5") == []
            assert agent.handover.abandon_failed(".npz") == [str(disk / "1.npz")]
            assert agent.outcome(held) == ABANDONED and agent.handover.abandon_failed(".npz") == []
            (disk / "filler").unlink()
            assert await agent.queue.close(PATIENCE_S, retry_s=1e9) == []
            assert not (disk / "1.npz").exists()

    play(tmp_path, scenario)


def test_later_failure_keeps_an_abandoned_file_abandoned(tmp_path: Path) -> None:
    async def scenario(agent: Agent) -> None:
        with small_disk.mounted(tmp_path / "run" / "checkpoints", 1000) as disk:
            small_disk.fill(disk)
            first = agent.save_file(disk / "1.npz", 1)
            await agent.written()
            agent.handover.abandon_failed(".npz")
            second = agent.save_file(disk / "2.npz", 1)
            await agent.written()
            assert (agent.outcome(first), agent.outcome(second)) == (ABANDONED, FAILED)
            unwritten = await agent.queue.close(PATIENCE_S)
            assert [one.partition(": ")[0] for one in unwritten] == [f"{disk}/2.npz"]

    play(tmp_path, scenario)


def test_training_does_not_wait_for_a_stalled_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(agent: Agent) -> None:
        agent.hold(True)
        agent.save(1)
        await agent.writer()
        second, third = agent.save(2), agent.save(3)
        waits = asyncio.create_task(asyncio.to_thread(agent.save, 4))
        await asyncio.sleep(0)
        monkeypatch.setattr(checkpoint_queue, "SLOW_S", 0.0)
        agent.queue.check_health()
        assert (await waits).slot == second.slot
        agent.save(5)
        assert agent.outcome(third) == PASSED_OVER
        agent.hold(False)
        assert await agent.queue.close(PATIENCE_S) == []
        assert found(agent.directory) == [1, 5]

    play(tmp_path, scenario)


def test_full_disk_is_noted_once_at_the_start_and_once_at_the_end(tmp_path: Path) -> None:
    async def scenario(agent: Agent) -> None:
        with small_disk.mounted(tmp_path / "run" / "checkpoints", 1000) as disk:
            small_disk.fill(disk)
            for step in (1, 2, 3):
                held = agent.save(step)
                await agent.written()
                assert agent.outcome(held) == FAILED
            (started_note,) = agent.notes
            assert "step-000000001 could not be written, and training continues: OSError: [Errno 28]" in started_note
            with pytest.raises(OSError, match=r"step-000000003 could not be written: .*No space left"):
                agent.handover.wait_stored(held, f"{disk}/step-000000003", 1.0)
            (disk / "filler").unlink()
            agent.save(4)
            await agent.written()
            assert found(disk) == [4]
            assert agent.notes[1:] == [
                f"checkpoints are written again: {disk}/step-000000004; 3 checkpoints could not be written before"
            ]

    play(tmp_path, scenario)


@pytest.mark.parametrize("emptied", [True, False])
def test_last_failed_checkpoint_is_retried_at_close(tmp_path: Path, emptied: bool) -> None:
    async def scenario(agent: Agent) -> None:
        with small_disk.mounted(tmp_path / "run" / "checkpoints", 1000) as disk:
            small_disk.fill(disk)
            agent.save(1)
            await agent.written()
            if emptied:
                (disk / "filler").unlink()
            unwritten = await agent.queue.close(PATIENCE_S)
            assert found(disk) == ([1] if emptied else [])
            assert emptied == (not unwritten) and all("No space left" in one for one in unwritten)

    play(tmp_path, scenario)


def test_state_too_large_for_memory_remains_with_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(agent: Agent) -> None:
        monkeypatch.setattr(checkpoint_writer, "free_memory_bytes", lambda: 1_000_000)
        agent.save(1, megabytes=0.9)
        await agent.written()
        with pytest.raises(AssertionError):  # no checkpoint was handed over
            agent.save(2, megabytes=1.1)
        monkeypatch.setattr(checkpoint_writer, "free_memory_bytes", lambda: 0)
        agent.save(3, megabytes=0.9)  # there is memory of this size already
        await agent.written()
        assert found(agent.directory) == [1, 3]

    play(tmp_path, scenario)


def test_wait_for_a_checkpoint_has_a_timeout(tmp_path: Path) -> None:
    async def scenario(agent: Agent) -> None:
        agent.hold(True)
        held = agent.save(1)
        with pytest.raises(StorageTimeout, match="still being copied"):
            agent.handover.wait_stored(held, "step-000000001", 0.01)
        agent.hold(False)
        await asyncio.to_thread(agent.handover.wait_written)
        assert found(agent.directory) == [1]
        agent.handover.wait_stored(held, "step-000000001", 0.01)

    play(tmp_path, scenario)


def test_saves_of_several_threads_are_serialised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(agent: Agent) -> None:
        original = agent.queue.slots.pin

        def pin(slot: int, pinned: bool) -> None:
            time.sleep(0.001)  # another thread's turn: has it seen the same slot?
            original(slot, pinned)

        monkeypatch.setattr(agent.queue.slots, "pin", pin)

        def save_all(name: str) -> list[HeldCheckpoint]:
            return [plain_checkpoints.save(agent.handover, tmp_path / name, step) for step in range(1, 11)]

        held = await asyncio.gather(*(asyncio.to_thread(save_all, f"of-{number}") for number in range(3)))
        await agent.written()
        assert len({one.number for each in held for one in each}) == 30 and agent.notes == []
        assert all(found(tmp_path / f"of-{number}")[-1] == 10 for number in range(3))

    play(tmp_path, scenario)


class Alarmed(TimeoutError):
    """Exception raised by a signal handler of the user."""


@pytest.mark.parametrize("times", [1, 2])
def test_exception_while_announcing_a_checkpoint_leaves_no_pinned_slot(tmp_path: Path, times: int) -> None:
    """Raised once, the checkpoint is still written; raised at every attempt, it counts as failed."""

    async def scenario(agent: Agent) -> None:
        left, original = [Alarmed() for _ in range(times)], agent.handover._port.announce

        def announce(*what: Any) -> None:
            if left:
                raise left.pop()
            original(*what)

        agent.handover._port = dataclasses.replace(agent.handover._port, announce=announce)
        with pytest.raises(Alarmed):
            agent.save(1)
        await asyncio.wait_for(asyncio.to_thread(agent.handover.wait_written), PATIENCE_S)
        agent.save(2)
        await agent.written()
        assert found(agent.directory) == ([1, 2] if times == 1 else [2])
        assert not any(agent.queue.slots.is_pinned(slot) for slot in range(SLOTS))

    play(tmp_path, scenario)


def test_alarm_while_the_state_is_copied_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(agent: Agent) -> None:
        def write(*_: Any) -> None:
            raise Alarmed

        with monkeypatch.context() as patch:
            patch.setattr(agent.queue.slots, "write", write)
            with pytest.raises(Alarmed):
                agent.save(1)
        assert not agent.queue.slots.is_pinned(0)
        agent.save(2)
        await agent.written()
        assert found(agent.directory) == [2]

    play(tmp_path, scenario)


def test_signal_handler_that_saves_during_a_save_must_write_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler that saves when the node is about to leave must not wait for the save that it interrupts."""

    async def scenario(agent: Agent) -> None:
        original, inside = agent.queue.slots.write, list[object]()

        def write(*what: Any) -> None:
            description = CheckpointDescription("elsewhere", b"{}", 1, 3, True, 0o077)
            inside.append(
                agent.handover.send_snapshot(
                    pack({}, description, "tests.integration.cluster.plain_checkpoints:write"), "elsewhere"
                )
            )
            original(*what)

        monkeypatch.setattr(agent.queue.slots, "write", write)
        agent.save(1)
        agent.save(2)
        await agent.written()
        assert inside == [None, None] and found(agent.directory) == [1, 2]

    play(tmp_path, scenario)


def test_repeated_announcement_of_a_checkpoint_is_ignored(tmp_path: Path) -> None:
    async def scenario(agent: Agent) -> None:
        agent.hold(True)
        held = agent.save(1)
        agent.queue.add(CheckpointSaved(held.number, held.slot, str(agent.directory / "step-000000001")))
        assert len(agent.queue._waiting) == 1
        agent.hold(False)
        await agent.written()
        assert found(agent.directory) == [1] and agent.notes == []

    play(tmp_path, scenario)
