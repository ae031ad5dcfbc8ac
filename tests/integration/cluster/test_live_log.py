"""Tests of floods of output and messages: the driver drops or delays the excess, and delays nothing else."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hopsml
from hopsml import experiment
from hopsml.cluster.agent import local_tree
from hopsml.cluster.agent.local_tree import EVERY_S, TAIL, WINDOW, Flow, LiveLog
from hopsml.cluster.agent.network import ROOM, Outbox
from hopsml.cluster.shared import protocol
from hopsml.cluster.shared.worker_events import WorkerMessage
from hopsml.experiment import applications
from tests.helpers import clock
from tests.helpers.clock import END_S
from tests.helpers.cluster.workloads import WAIT_S, wait_until

pytestmark = pytest.mark.local

LINE = b"x" * 99 + b"\n"
FLOOD_MB = 300


# ---------------------------------------------------------------------------------------------- pure


@given(
    st.lists(st.tuples(st.integers(0, 3 * WINDOW), st.floats(0.01, 5), st.integers(0, WINDOW)), max_size=40),
)
def test_flow_respects_the_window_and_covers_each_byte_once(
    reads: list[tuple[int, float, int]],
) -> None:
    flow, size, now, sent, under_way = Flow(), 0, 0.0, 0, 0
    for number, (grown, passed, taken) in enumerate(reads):
        flow.record_acknowledged(taken)
        under_way = max(0, under_way - taken)
        size, now, start = size + grown, now + passed, flow.position
        head, tail, end = flow.next_parts(size, now, last=number == len(reads) - 1)
        assert start <= head <= tail <= end <= size
        sent += head - start + end - tail
        under_way += head - start + end - tail
        assert under_way == flow.in_flight <= WINDOW
        assert flow.position == end
    assert not reads or flow.position == size  # the last read covers the rest


def test_moderate_output_is_sent_completely() -> None:
    flow, size = Flow(), 0
    for second in range(100):
        size += 50_000
        assert flow.next_parts(size, float(second)) == (size, size, size)
        flow.record_acknowledged(50_000)


def test_flood_is_sent_as_its_start_and_periodic_newest_lines() -> None:
    flow = Flow()
    assert flow.next_parts(100 << 20, 0.0) == (WINDOW - TAIL,) * 3
    flow.record_acknowledged(WINDOW)
    assert flow.next_parts(200 << 20, 1.0) == (WINDOW - TAIL,) * 3  # no data: the last update was recent
    assert flow.next_parts(300 << 20, EVERY_S) == (WINDOW - TAIL, (300 << 20) - TAIL, 300 << 20)
    flow.record_acknowledged(TAIL)
    assert flow.next_parts((300 << 20) + 100, EVERY_S + 1) == ((300 << 20) + 100,) * 3  # it is over


def test_driver_that_acknowledges_nothing_receives_only_the_end_of_the_log() -> None:
    flow = Flow()
    flow.next_parts(100 << 20, 0.0)
    for second in range(1, 100):
        position = flow.position
        assert flow.next_parts((100 + second) << 20, float(second)) == (position,) * 3
    assert flow.next_parts(300 << 20, 200.0, last=True) == (position, (300 << 20) - TAIL, 300 << 20)


def test_truncated_log_is_continued_at_its_new_end() -> None:
    flow = Flow()
    flow.next_parts(1000, 0.0)
    assert flow.next_parts(10, 1.0) == (10, 10, 10)
    assert flow.next_parts(20, 2.0) == (20, 20, 20)


# ---------------------------------------------------------------------------------------------- a file, an outbox


def test_skipped_lines_are_counted_and_the_complete_log_is_named(tmp_path: Path) -> None:
    log = tmp_path / "rank0.log"
    log.write_bytes(LINE * 100_000)
    received: list[str] = []

    async def follow() -> None:
        live = LiveLog(log, "hdfs://nn/logs/rank0.log", lambda text, size: received.append(text))
        live.finish()
        await live.follow()

    asyncio.run(follow())
    text = "".join(received)
    (note,) = [line for line in text.splitlines() if "skipped" in line]
    shown = text.count(LINE.decode())
    cut = 1 if (WINDOW - TAIL) % len(LINE) else 0
    assert note.startswith("… ") and note.endswith("were skipped here; the whole log is hdfs://nn/logs/rank0.log")
    assert int(note.split()[1]) + shown == 100_000
    assert len(text) <= WINDOW + len(note) + 2 and shown > (WINDOW - len(LINE) * (2 + cut)) // len(LINE) - 2


def test_character_split_between_two_reads_is_sent_intact(tmp_path: Path) -> None:
    log, received = tmp_path / "rank0.log", []
    log.write_bytes("ü".encode()[:1])

    async def follow() -> None:
        live = LiveLog(log, "", lambda text, size: received.append(text))
        following = asyncio.create_task(live.follow())
        while live._flow.position < 1:
            await asyncio.sleep(0.01)
        with open(log, "ab") as file:
            file.write("ü".encode()[1:] + b"\n")
        live.finish()
        await following

    asyncio.run(follow())
    assert "".join(received) == "ü\n"


def test_skipped_lines_beyond_the_counting_limit_are_estimated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_tree, "COUNTED", 10 * len(LINE))
    log = tmp_path / "rank0.log"
    log.write_bytes(LINE * 1000)
    assert local_tree.count_skipped_lines(log, 0, 500 * len(LINE) - 3, 1000 * len(LINE)) == (
        "about 500",
        500 * len(LINE),
    )


def test_heartbeat_overtakes_queued_messages_and_acknowledgements_free_room() -> None:
    async def talk() -> None:
        outbox, sent = Outbox(), []
        for _ in range(3):
            outbox.put(protocol.WorkerUpdate("r", 0, WorkerMessage(bytes(ROOM))))
        outbox.put(protocol.Heartbeat())
        waiting = asyncio.create_task(outbox.wait_for_room())
        assert protocol.decode_for_coordinator(await outbox.take()) == protocol.Heartbeat()
        sent = [await outbox.take() for _ in range(3)]
        outbox.put(protocol.Heartbeat())
        assert protocol.decode_for_coordinator(await outbox.take()) == protocol.Heartbeat()
        for data in sent:  # it is under way, which is no room: what the coordinator has not read delays its answers
            await asyncio.sleep(0)
            assert not waiting.done()
            outbox.record_handled(len(data))
        await asyncio.wait_for(waiting, WAIT_S)

    asyncio.run(talk())


# ---------------------------------------------------------------------------------------------- a run


def flood(megabytes: int) -> float:
    """Prints so much, as fast as it can."""
    block = LINE * 10_000
    for _ in range(megabytes):
        os.write(1, block)
    return time.time()


def test_flood_of_output_delays_neither_the_result_nor_a_heartbeat(store: Path) -> None:
    gaps: list[float] = []
    run = experiment.submit(flood, args={"megabytes": FLOOD_MB}, num_workers=1, progress=False)
    agent = wait_until(
        lambda: next(iter(applications.get_or_start().coordinator.door.agents.values()), None), "the agent"
    )
    while not run.done():
        gaps.append(time.monotonic() - agent.last_received_s)
        time.sleep(0.02)
    result = run.result(END_S)
    assert (store.parent / run.directory.log_url(0, 0).removeprefix("file://")).stat().st_size == FLOOD_MB * 1_000_000
    live = run.logs(0)
    assert "were skipped here; the whole log is " in live and len(live) < 4 * WINDOW + result.seconds * local_tree.RATE
    assert live.endswith(LINE.decode())
    assert max(gaps) < 5  # of the lease's 10 s


def test_flood_of_messages_does_not_delay_a_heartbeat(store: Path) -> None:
    def send() -> float:
        for _ in range(200):
            hopsml.send(bytes(1 << 20))
        return time.time()

    run = experiment.submit(send, num_workers=1, progress=False)
    agent = wait_until(
        lambda: next(iter(applications.get_or_start().coordinator.door.agents.values()), None), "the agent"
    )
    start_s, late = clock.awake(), 0.0
    received: list[int] = []
    run.on_message(lambda rank, value: received.append(len(value)))
    while not run.done():
        late = max(late, time.monotonic() - agent.last_received_s)
        time.sleep(0.02)
    assert run.result(END_S).value
    wait_until(lambda: len(received) == 200, "all of them")
    assert late < 5, (late, clock.awake() - start_s)
