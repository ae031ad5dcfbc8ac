"""Tests that slow readers delay only themselves: displays, callbacks, logging handlers."""

from __future__ import annotations

import importlib
import logging
import os
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hopsml
from hopsml import experiment
from hopsml.cluster.driver.run_state import Change, RunState
from hopsml.core import callbacks
from hopsml.core.callbacks import AsyncCalls, Backlog, Worth
from hopsml.experiment import applications, messages
from hopsml.experiment.messages import Messages
from hopsml.experiment.progress import RunLines
from hopsml.experiment.searches.state import SearchState
from tests.helpers import clock
from tests.helpers.clock import END_S
from tests.helpers.cluster.workloads import WAIT_S, wait_for_files, wait_until

pytestmark = pytest.mark.local

Item = tuple[str, int]  # worth, number


class Numbers:
    """A rule; skipped items are reported as ("news", -count)."""

    def worth(self, item: Item) -> Worth:
        return item[0]  # type: ignore[return-value]

    def size(self, item: Item) -> int:
        return 10

    def same_as(self, item: Item) -> Hashable | None:
        return item[1] % 2 if item[0] == "update" else None

    def count(self, item: Item, skipped: Counter[str]) -> None:
        skipped[item[0]] += 1

    def skipped_item(self, skipped: Counter[str]) -> Item:
        return "news", -sum(skipped.values())


class BlockedCallable:
    """A callable that returns when the test allows it."""

    def __init__(self) -> None:
        self.go, self.called = threading.Event(), threading.Event()
        self.calls: list[Any] = []

    def __call__(self, *arguments: Any) -> None:
        self.calls.append(arguments)
        self.called.set()
        assert self.go.wait(WAIT_S)


@pytest.fixture
def blocked() -> Iterator[BlockedCallable]:
    """Its threads end with the test."""
    one = BlockedCallable()
    yield one
    one.go.set()


# ---------------------------------------------------------------------------------------------- what waits


@given(st.lists(st.tuples(st.sampled_from(["update", "news", "end"]), st.just(0)), max_size=60))
def test_backlog_is_bounded_preserves_order_and_counts_skipped_items(kinds: list[Item]) -> None:
    items = [(kind, number + 1) for number, (kind, _) in enumerate(kinds)]
    backlog: Backlog[Item] = Backlog(Numbers(), updates=5, most_bytes=40, news=7)
    for item in items:
        backlog.put(item)
    out: list[Item] = []
    while (item := backlog.take()) is not None:
        out.append(item)
    assert not backlog
    real = [item for item in out if item[1] > 0]
    assert [item for item in real if item[0] == "end"] == [item for item in items if item[0] == "end"]
    ends = sum(item[0] == "end" for item in items)
    assert sum(item[0] == "update" for item in real) <= 4 + 2 * (ends + 1)  # the newest of a kind arrive late
    assert sum(item[0] == "news" for item in real) <= 7
    skipped = -sum(item[1] for item in out if item[1] < 0)
    late = len(real) + skipped - len(items)  # counted as skipped, but also delivered
    assert 0 <= late <= 2 * (ends + 1)
    assert len(set(real)) == len(real)


def test_backlog_retains_the_newest_update_of_each_kind() -> None:
    backlog: Backlog[Item] = Backlog(Numbers(), updates=2)
    for number in range(10):
        backlog.put(("update", number))
    out = [backlog.take() for _ in range(5)]
    assert out == [("update", 0), ("update", 1), ("news", -8), ("update", 8), ("update", 9)]
    assert backlog.take() is None


def test_put_does_not_wait_and_skipped_items_are_reported(blocked: BlockedCallable) -> None:
    one: AsyncCalls[Item] = AsyncCalls("hopsml-test", blocked, Numbers())
    for number in range(callbacks.MOST_UPDATES + 100):
        one.put(("update", number))
    assert blocked.called.wait(WAIT_S)
    assert not one.wait_until_delivered(0.05)
    blocked.go.set()
    assert one.wait_until_delivered(WAIT_S)
    numbers = [item[1] for (item,) in blocked.calls]
    # One is being handled while the others wait.
    assert -100 <= min(numbers) <= -98
    assert numbers[-1] in (callbacks.MOST_UPDATES + 99, callbacks.MOST_UPDATES + 98)


def test_observer_that_raises_is_dropped_and_others_are_notified() -> None:
    state, seen, calls = RunState("app_1", 1), [], []

    def broken(change: Change) -> None:
        calls.append(change)
        raise RuntimeError("a mistake")

    state.observe(broken)
    state.observe(seen.append)
    for number in range(3):
        state.publish(Change("note", text=str(number)))
    assert state.wait_for_observers(WAIT_S)
    assert [change.text for change in seen] == ["0", "1", "2"]
    assert len(calls) == 1


# ---------------------------------------------------------------------------------------------- a run


def verbose(folder: str) -> int:
    """More output than a pipe holds."""
    for step in range(400):
        hopsml.report(step=step, loss=1.0)
        hopsml.send(step)
        print("step", step, "x" * 1000, flush=True)
    Path(folder, "printed").touch()
    wait_for_files(folder, "go-on")
    return step


def test_run_continues_while_its_output_is_not_read(store: Path, tmp_path: Path, blocked: BlockedCallable) -> None:
    read_end, write_end = os.pipe()
    handler = logging.Handler()
    handler.emit = blocked  # type: ignore[method-assign]
    logger = logging.getLogger("hopsml.coordinator")
    logger.addHandler(handler)
    try:
        with os.fdopen(write_end, "w") as pager:
            run = experiment.submit(verbose, args={"folder": str(tmp_path)}, num_workers=1, progress=False)
            run.observe(RunLines(run.run_id, pager))
            run.observe(blocked)
            run.on_message(blocked)
            wait_until((tmp_path / "printed").exists, "the output")
            coordinator = applications.get_or_start().coordinator
            with socket.create_connection(coordinator.addresses[0], timeout=WAIT_S) as stranger:
                stranger.sendall(b"no TLS" * 100)
                while stranger.recv(4096):
                    pass
            wait_until(lambda: sum(args[0] is not None for args in blocked.calls) >= 3, "all are stuck")
            last_received_s = next(iter(coordinator.door.agents.values())).last_received_s
            wait_until(
                lambda: next(iter(coordinator.door.agents.values())).last_received_s > last_received_s,
                "the next heartbeat",
            )
            (tmp_path / "go-on").touch()
            start_s = clock.awake()
            assert run.result(END_S).value == 399
            assert clock.awake() - start_s < 10  # SETTLE_S for who does not read, and the run's end
            blocked.go.set()
            os.set_blocking(read_end, False)
            text = b""
            deadline = time.monotonic() + WAIT_S
            while b"step 399" not in text and time.monotonic() < deadline:
                try:
                    text += os.read(read_end, 1 << 16)
                except BlockingIOError:
                    time.sleep(0.01)
            assert b"step 399" in text  # a pager that is read again shows the rest
    finally:
        blocked.go.set()
        logger.removeHandler(handler)
        os.close(read_end)


DRIVER = textwrap.dedent("""
    import logging, sys
    from hopsml import experiment
    from hopsml.cluster.driver import sessions

    def train():
        for step in range(300):
            print("step", step, "x" * 1000, flush=True)

    run = experiment.submit(train, num_workers=1)
    for number in range(300):
        sessions.log.warning("a stranger %d %s", number, "x" * 1000)
    run.result(600)
    print("the result is there", flush=True)
    experiment.shutdown()
""")


@pytest.mark.variant
def test_program_ends_although_its_stderr_is_not_read(store: Path) -> None:
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    assert driver.stdout is not None and driver.stderr is not None
    with driver, driver.stdout, driver.stderr:
        try:
            assert driver.stdout.readline() == "the result is there\n"
            assert driver.wait(WAIT_S) == 0
            assert "a stranger 0 xxx" in driver.stderr.read()
        finally:
            driver.kill()


@pytest.mark.parametrize(
    "module",
    [
        "cluster.agent.agent", "cluster.agent.work", "cluster.driver.coordinator", "cluster.driver.sessions",
        "cluster.driver.group_start",
        "cluster.driver.backends.spark", "storage.run_dir", "tracking.record", "experiment.plan",
        "experiment.messages", "experiment.reporting", "experiment.searches.handle", "experiment.searches.groups",
        "experiment.searches.recorded",
    ],
)  # fmt: skip
def test_threads_of_hopsml_do_not_wait_for_logging_handlers(module: str, blocked: BlockedCallable) -> None:
    loaded = importlib.import_module(f"hopsml.{module}")
    logger = getattr(loaded, "log", None) or loaded.logger
    handler = logging.Handler()
    handler.emit = blocked  # type: ignore[method-assign]
    logging.getLogger(logger.name).addHandler(handler)
    try:
        for _ in range(3):
            logger.warning("one")
        assert blocked.called.wait(WAIT_S)
        assert len(blocked.calls) == 1
        blocked.go.set()
        assert callbacks.RECORDS.wait_until_delivered(WAIT_S)
        assert len(blocked.calls) == 3
    finally:
        logging.getLogger(logger.name).removeHandler(handler)


def test_unread_messages_are_retained_up_to_a_limit_that_is_noted(
    blocked: BlockedCallable, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pickle

    monkeypatch.setattr(messages, "MOST_KEPT", 5)
    notes: list[str] = []
    messages_of_run = Messages("app_1", lambda rank, size: None, notes.append)
    for number in range(8):
        messages_of_run.on_change(Change("said", 0, data=pickle.dumps(number)))
    assert len(notes) == 1 and "5" in notes[0] and "on_message" in notes[0]
    received: list[int] = []
    messages_of_run.subscribe(lambda rank, value: received.append(value))
    wait_until(lambda: received == [0, 1, 2, 3, 4], "those that were kept")
    wait_until(lambda: messages_of_run._waiting == 0, "room again")
    messages_of_run.on_change(Change("said", 0, data=pickle.dumps(8)))
    wait_until(lambda: received[-1] == 8, "the next")
    messages_of_run.on_change(Change("end"))
    assert notes[1:] == ["3 values that workers sent were dropped"]


def test_search_does_not_wait_for_its_observers(blocked: BlockedCallable) -> None:
    state, seen = SearchState("app_1", "s", "/runs/app_1", "max", "m"), []
    state.observe(blocked)
    state.observe(lambda what, facts: seen.append(what))
    state.note("one")
    state.note("two")
    state.close("FINISHED", "complete", None)
    assert not state.settle(0.05)
    wait_until(lambda: seen == ["note", "note", "closed"], "the other observer")
    assert len(blocked.calls) == 1
