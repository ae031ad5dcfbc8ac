"""Tests that a sidecar lives exactly as long as its agent needs it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from hopsml.cluster.agent import sidecar_process
from hopsml.cluster.agent.sidecar_process import MOST_STARTS, SidecarProcess, SidecarSpare
from hopsml.cluster.shared import protocol
from hopsml.core import processes
from tests.helpers.cluster.workloads import WAIT_S

pytestmark = pytest.mark.local


class Scene:
    def __init__(self, folder: Path, target: str) -> None:
        self.messages: asyncio.Queue[Any] = asyncio.Queue()
        self.folder = folder / "sidecar"
        target = f"tests.integration.cluster.sidecars:{target}"
        self.spare = SidecarSpare()
        self.process = SidecarProcess(
            "app_1", target, "127.0.0.1", None, self.folder, self.messages.put_nowait, self.spare
        )

    async def next_message(self) -> Any:
        return await asyncio.wait_for(self.messages.get(), WAIT_S)

    async def pid(self) -> int:
        next_message = await self.next_message()
        assert isinstance(next_message, protocol.SidecarMessage) and next_message.run_id == "app_1"
        return int(next_message.data)


@contextlib.asynccontextmanager
async def running_scene(folder: Path, target: str = "stay") -> AsyncIterator[Scene]:
    scene = Scene(folder, target)
    running = asyncio.create_task(scene.process.run())
    try:
        yield scene
    finally:
        await scene.process.close()
        await asyncio.wait_for(running, WAIT_S)


def test_sidecar_reports_its_address_and_ends_with_its_folder(tmp_path: Path) -> None:
    async def play() -> int:
        async with running_scene(tmp_path) as scene:
            pid = await scene.pid()
            assert (scene.folder / "address").read_text() == str(pid)
            assert (scene.folder / "address").stat().st_mode & 0o777 == 0o600
        assert not scene.folder.exists()
        return pid

    assert processes.has_ended(asyncio.run(play()))


def test_prepared_spare_is_used_once_if_its_kind_matches_and_it_is_alive(tmp_path: Path) -> None:
    async def play(prepared: str, kill: bool = False) -> tuple[int, int]:
        scene = Scene(tmp_path, "stay")
        scene.spare.prepare(f"tests.integration.cluster.sidecars:{prepared}")
        assert scene.spare._process is not None
        waiting = scene.spare._process.pid
        if kill:
            scene.spare._process.kill()
            scene.spare._process.wait()
        running = asyncio.create_task(scene.process.run())
        taken = await scene.pid()
        await scene.process.close()
        await asyncio.wait_for(running, WAIT_S)
        assert processes.has_ended(waiting) and processes.has_ended(taken) and scene.spare._process is None
        return waiting, taken

    waiting, taken = asyncio.run(play("stay"))
    assert taken == waiting
    waiting, taken = asyncio.run(play("fail"))
    assert taken != waiting
    waiting, taken = asyncio.run(play("stay", kill=True))
    assert taken != waiting


def test_unused_spare_ends_with_its_agent() -> None:
    spare = SidecarSpare()
    spare.prepare("tests.integration.cluster.sidecars:stay")
    first = spare._process
    spare.prepare("tests.integration.cluster.sidecars:stay")
    second = spare._process
    assert first is not None and second is not None and processes.has_ended(first.pid)
    assert second.stdin is not None
    second.stdin.close()  # as the kernel does, where the agent was killed
    assert second.wait(WAIT_S) == 0
    spare.close()


def test_killed_sidecar_is_replaced_and_both_events_are_reported(tmp_path: Path) -> None:
    async def play() -> None:
        async with running_scene(tmp_path) as scene:
            first = await scene.pid()
            os.kill(first, signal.SIGKILL)
            ended = await scene.next_message()
            assert isinstance(ended, protocol.SidecarEnded) and not ended.is_final
            assert "killed by signal 9" in ended.reason
            second = await scene.pid()
            assert second != first and (scene.folder / "address").read_text() == str(second)
            assert [path.name for path in scene.folder.iterdir() if path.is_dir()] == ["1"]

    asyncio.run(play())


def test_stopped_sidecar_is_resumed_and_then_replaced(tmp_path: Path) -> None:
    async def play() -> None:
        async with running_scene(tmp_path) as scene:
            first = await scene.pid()
            os.kill(first, signal.SIGSTOP)
            while not processes.is_stopped(first):
                await asyncio.sleep(0.01)
            scene.process.check_health()  # wakes it
            while processes.is_stopped(first):
                await asyncio.sleep(0.01)
            os.kill(first, signal.SIGSTOP)
            while not processes.is_stopped(first):
                await asyncio.sleep(0.01)
            scene.process.check_health()
            scene.process.check_health()  # the third heartbeat in a row
            ended = await scene.next_message()
            assert isinstance(ended, protocol.SidecarEnded)
            assert await scene.pid() != first

    asyncio.run(play())


def test_sidecar_that_cannot_start_is_abandoned_with_its_reason(tmp_path: Path) -> None:
    async def play() -> list[Any]:
        async with running_scene(tmp_path, "fail") as scene:
            return [await scene.next_message() for _ in range(MOST_STARTS)]

    messages = asyncio.run(play())
    assert [message.is_final for message in messages] == [False] * (MOST_STARTS - 1) + [True]
    assert all("ended with status 1: OSError: no port is free" in message.reason for message in messages)


def test_occasionally_failing_sidecar_is_replaced_throughout_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sidecar_process, "STEADY_S", 0.0)

    async def play() -> None:
        async with running_scene(tmp_path) as scene:
            for _ in range(MOST_STARTS + 1):
                os.kill(await scene.pid(), signal.SIGKILL)
                ended = await scene.next_message()
                assert isinstance(ended, protocol.SidecarEnded) and not ended.is_final
            await scene.pid()

    asyncio.run(play())
