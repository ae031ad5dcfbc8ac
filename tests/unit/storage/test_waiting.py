"""Tests of the time that a process waits for storage: calls of file systems, threads, forked children."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from hopsml.cluster.agent import usage
from hopsml.cluster.agent.usage import Idleness, StorageWaits
from hopsml.cluster.shared.commit_slots import CommitSlots
from hopsml.cluster.worker.context import CheckpointPort
from hopsml.errors import StorageTimeout
from hopsml.storage import filesystem, waiting
from hopsml.storage.local import LocalFileSystem
from hopsml.storage.remote.adapter import RemoteFileSystem
from hopsml.training import checkpoint_writer
from tests.helpers.clock import WAIT_S

pytestmark = pytest.mark.fast


class Clock:
    """Monotonic time that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(waiting, "time", clock)
    monkeypatch.setattr(usage, "time", clock)
    return clock


@pytest.fixture
def slots(monkeypatch: pytest.MonkeyPatch) -> Iterator[CommitSlots]:
    made = CommitSlots.create()
    monkeypatch.setattr(waiting, "_waits", waiting._Waits())
    waiting.set_wait_reporter(made.record_storage_wait)
    yield made
    waiting.set_wait_reporter(None)
    made.close()


def test_overlapping_waits_of_threads_count_once(clock: Clock, slots: CommitSlots) -> None:
    waits, begun, go = StorageWaits(), threading.Event(), threading.Event()

    def call() -> None:
        with waiting.StorageWait():
            begun.set()
            assert go.wait(WAIT_S)

    assert waits.seconds(slots.storage_waits()) == 0.0
    thread = threading.Thread(target=call)
    thread.start()
    assert begun.wait(WAIT_S)
    clock.now += 3.0
    assert waits.seconds(slots.storage_waits()) == 3.0
    with waiting.StorageWait():
        clock.now += 2.0
    assert waits.seconds(slots.storage_waits()) == 5.0
    go.set()
    thread.join()
    clock.now += 4.0
    assert waits.seconds(slots.storage_waits()) == 5.0, "no call is in progress"


def test_each_process_has_a_cell_for_its_waits(slots: CommitSlots, monkeypatch: pytest.MonkeyPatch) -> None:
    cells, ended = 32, 2**22 + 1  # beyond the largest process id of Linux
    alike = [ended + cells * number for number in range(cells)]
    for number, process in enumerate([*alike, *alike]):
        monkeypatch.setattr(os, "getpid", lambda process=process: process)
        slots.record_storage_wait(float(number), 0.0)
    assert sorted(slots.storage_waits()) == [(process, float(cells + at), 0.0) for at, process in enumerate(alike)]
    monkeypatch.undo()
    slots.record_storage_wait(1.0, 2.0)
    assert (os.getpid(), 1.0, 2.0) in slots.storage_waits(), "in the cell of one that has ended"


def test_wait_of_a_forked_child_counts_while_it_lives(clock: Clock, slots: CommitSlots) -> None:
    waits = StorageWaits()
    waits.seconds(slots.storage_waits())
    with waiting.StorageWait():
        child = os.fork()
        if not child:
            waiting._waits.end()  # of the parent's call, which the child does not make
            waiting._waits.begin()
            os._exit(0)
        os.waitpid(child, 0)
    clock.now += 7.0
    assert {process for process, _, _ in slots.storage_waits()} == {os.getpid(), child}
    assert waits.seconds(slots.storage_waits()) == 0.0, "a child that died within a call waits no more"
    _, waited_s, since = next(one for one in slots.storage_waits() if one[0] == child)
    assert (waited_s, since) == (0.0, 100.0)


def test_calls_of_file_systems_are_counted_and_errors_end_them(
    clock: Clock, slots: CommitSlots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.stat

    def slow(*arguments: object, **named: object) -> os.stat_result:
        clock.now += 5.0
        return real(*arguments, **named)  # type: ignore[arg-type]

    waits = StorageWaits()
    waits.seconds(slots.storage_waits())
    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", slow)
        assert not filesystem.exists(str(tmp_path / "none"))
    found = waits.seconds(slots.storage_waits())
    assert found >= 5.0 and all(since == 0.0 for _, _, since in slots.storage_waits())


def test_wait_for_a_stored_checkpoint_is_counted(
    clock: Clock, slots: CommitSlots, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, handover = StorageWaits(), checkpoint_writer.CheckpointSender(CheckpointPort(slots, lambda event: None))
    waits.seconds(slots.storage_waits())

    def sleep(seconds: float) -> None:
        clock.now += 30.0

    monkeypatch.setattr(checkpoint_writer, "time", SimpleNamespace(monotonic=clock.monotonic, sleep=sleep))
    with pytest.raises(StorageTimeout):
        handover.wait_stored(None, "step-000000001", 100.0)
    assert waits.seconds(slots.storage_waits()) == 120.0


def test_agent_that_has_freed_the_slots_sees_no_waits(clock: Clock, slots: CommitSlots) -> None:
    """An agent still sends heartbeats while it stores the last files of a worker that has ended."""
    waits = StorageWaits()
    with waiting.StorageWait():
        clock.now += 2.0
        assert waits.seconds(slots.storage_waits()) == 2.0
    waiting.set_wait_reporter(None)
    slots.close()
    clock.now += 5.0
    assert slots.storage_waits() == [] and waits.seconds(slots.storage_waits()) == 2.0


@pytest.mark.parametrize("kind", [LocalFileSystem, RemoteFileSystem])
def test_each_method_of_a_file_system_is_counted(kind: type) -> None:
    names = [name for name in vars(filesystem.FileSystem) if not name.startswith("_") and name != "scheme"]
    assert len(names) > 10
    for name in names:
        assert hasattr(getattr(kind, name), "__wrapped__"), name


def test_nothing_is_counted_outside_of_workers(tmp_path: Path) -> None:
    with waiting.StorageWait():
        assert waiting._waits._calls == 0 or waiting._waits.report is not None
    assert not filesystem.exists(str(tmp_path / "none")) and waiting._waits._calls == 0


def test_waits_for_storage_are_no_idle_time(clock: Clock) -> None:
    idleness = Idleness(os.getpid())
    idleness._look = dict  # type: ignore[method-assign]  # no processor time, and nothing read
    clock.now += 20.0
    assert idleness.seconds(0.0) == 20.0
    clock.now += 30.0
    assert idleness.seconds(25.0) == 25.0
    clock.now += 4.0
    assert idleness.seconds(29.0) == 25.0
