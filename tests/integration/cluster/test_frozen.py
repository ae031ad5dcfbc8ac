"""Tests of stopped processes (SIGSTOP) that never continue: the run ends in time and reports the cause."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hopsml import experiment
from hopsml.cluster.agent.local_tree import LocalTree, MissingFiles
from hopsml.core import processes
from tests.helpers import clock
from tests.helpers.clock import END_S
from tests.helpers.cluster import workloads
from tests.helpers.cluster.workloads import WAIT_S, living, traces, wait_until

pytestmark = pytest.mark.local


def train(folder: str) -> str:
    workloads.leave_trace(folder)
    workloads.wait_for_files(folder, "go-on")
    return "trained"


@contextmanager
def stopped(pid: int, for_good: bool) -> Iterator[None]:
    """Stop the process; ``for_good``: stop it again whenever it is resumed."""
    over = threading.Event()

    def insist() -> None:
        while not over.wait(0.001):
            processes.kill_quietly(pid, signal.SIGSTOP)

    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: processes.is_stopped(pid), "the stop")
    thread = threading.Thread(target=insist)
    if for_good:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if for_good:
            thread.join()


@pytest.mark.parametrize("for_good", [False, True], ids=["once", "permanently"])
def test_stopped_fork_server_delays_a_result_by_seconds(store: Path, tmp_path: Path, for_good: bool) -> None:
    run = experiment.submit(train, args={"folder": str(tmp_path)}, num_workers=1, progress=False)
    (trace,) = traces(tmp_path, 1)
    with stopped(trace.server, for_good):
        start_s = clock.awake()
        (tmp_path / "go-on").touch()
        assert run.result(END_S).value == "trained"
        took_s = clock.awake() - start_s
        assert any("process that starts workers" in note for note in run.state.notes)
        wait_until(lambda: not living([trace.worker, trace.child]), "the end of all")
    assert took_s < 15
    again = experiment.submit(train, args={"folder": str(tmp_path)}, num_workers=1, progress=False)
    assert again.result(END_S).value == "trained"


def test_run_with_a_stopped_fork_server_can_be_cancelled(store: Path, tmp_path: Path) -> None:
    run = experiment.submit(train, args={"folder": str(tmp_path)}, num_workers=1, progress=False)
    (trace,) = traces(tmp_path, 1)
    with stopped(trace.server, for_good=True):
        start_s = clock.awake()
        run.cancel()
        run.join(WAIT_S)
        assert run.done()
        assert clock.awake() - start_s < 20
        wait_until(lambda: not living([trace.worker, trace.child]), "the end of all")


def mirrored(target: Path, base: Path) -> LocalTree:
    """As for a store that is not a disk."""
    tree = LocalTree(f"file://{target}", base, 30.0, lambda problem: None)
    tree.is_mirrored, tree.base, tree.base_text = True, base, str(base)
    return tree


async def _check_health_until(tree: LocalTree, notes: list[str], until: Callable[[], bool]) -> None:
    """Check the tree's health as an agent does with each heartbeat, but faster."""
    while not until():
        if text := tree.check_health():
            notes.append(text)
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("for_good", [False, True], ids=["once", "permanently"])
def test_stopped_mirror_loses_nothing_and_delays_by_seconds(tmp_path: Path, for_good: bool) -> None:
    target = tmp_path / "store"
    target.mkdir()
    notes: list[str] = []

    async def close() -> list[str]:
        tree = mirrored(target, tmp_path / "local")
        await tree.open()
        mirror = tree._mirror
        assert mirror is not None and mirror.process is not None
        with stopped(mirror.process.pid, for_good):
            (tree.base / "logs" / "g0-rank0.log").write_text("last words")
            closing = asyncio.create_task(tree.close(60.0))
            await asyncio.wait_for(asyncio.gather(closing, _check_health_until(tree, notes, closing.done)), WAIT_S)
        return closing.result()

    start_s = time.monotonic()
    assert asyncio.run(close()) == MissingFiles()
    assert time.monotonic() - start_s < WAIT_S
    assert (target / "logs" / "g0-rank0.log").read_text() == "last words"
    assert "is resumed" in notes[0] and "process that mirrors files" in notes[0]
    assert not for_good or any("is killed" in note for note in notes)


def test_mirror_that_is_killed_during_training_is_replaced(tmp_path: Path) -> None:
    target = tmp_path / "store"
    target.mkdir()

    async def live() -> list[str]:
        notes: list[str] = []
        tree = mirrored(target, tmp_path / "local")
        await tree.open()
        mirror = tree._mirror
        assert mirror is not None and mirror.process is not None
        os.kill(mirror.process.pid, signal.SIGKILL)
        (tree.base / "logs" / "g0-rank0.log").write_text("words")
        mirrored_log = target / "logs" / "g0-rank0.log"
        await asyncio.wait_for(_check_health_until(tree, notes, mirrored_log.exists), WAIT_S)
        assert await tree.close(30.0) == MissingFiles()
        return notes

    notes = asyncio.run(live())
    assert len(notes) == 1 and "and is started again" in notes[0]
