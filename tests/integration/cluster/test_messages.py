"""Tests of values in both directions between driver and workers during a training."""

from __future__ import annotations

import json
import logging
import queue
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hopsml
from hopsml import experiment
from hopsml.cluster.shared.framing import FrameDecoder, framed
from hopsml.errors import ArgumentError, ArgumentTypeError, WorkerFailed
from tests.helpers.clock import END_S, awake
from tests.helpers.cluster.workloads import WAIT_S, wait_until

pytestmark = pytest.mark.local


@given(st.lists(st.binary(max_size=300), max_size=8), st.integers(1, 50))
def test_frames_are_reassembled_from_any_pieces(messages: list[bytes], piece: int) -> None:
    stream, frames, out = b"".join(map(framed, messages)), FrameDecoder(), []
    for start in range(0, len(stream), piece):
        out += frames.feed(stream[start : start + piece])
    assert out == messages


def test_damaged_stream_of_frames_is_an_error() -> None:
    with pytest.raises(ValueError, match="the stream is damaged"):
        FrameDecoder().feed(b"\xff\xff\xff\xff....")


def echo(count: int) -> int:
    """Sends back what it gets, until it has had ``count`` values."""
    hopsml.send("ready")
    for _ in range(count):
        hopsml.send(("echo", hopsml.receive(timeout=END_S)))
    return count


def submit(function: Any, workers: int = 2, **args: Any) -> experiment.Run:
    return experiment.submit(function, args=args, num_workers=workers, progress=False)


def test_values_are_exchanged_in_order_and_callback_errors_are_logged(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = submit(echo, count=3)
    received: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()

    def fail(rank: int, value: Any) -> None:
        raise RuntimeError("a mistake of the user's")

    wait_until(
        lambda: all(m["state"] == "RUNNING" for m in run.status()["members"]) and run.status()["members"], "both"
    )
    with caplog.at_level(logging.ERROR, "hopsml.messages"):
        run.on_message(lambda rank, value: received.put((rank, value)))
        run.on_message(fail)
        assert sorted(received.get(timeout=WAIT_S) for _ in range(2)) == [(0, "ready"), (1, "ready")]
        run.send({"a": 1})
        run.send("for one", rank=1)
        run.send("and for the other", rank=0)
        run.send("last")
        assert run.result(END_S).value == 3
        values = [received.get(timeout=WAIT_S) for _ in range(6)]
        wait_until(lambda: "a mistake of the user's" in caplog.text, "the log")
    for rank, own in ((0, "and for the other"), (1, "for one")):
        mine = [value for sender, (_, value) in values if sender == rank]
        assert mine == [{"a": 1}, own, "last"]


def test_flood_of_reports_and_values_is_stored_completely(store: Path) -> None:
    """More than agent and driver can queue: the sender waits, and no value is lost."""

    def train(count: int) -> dict[str, int]:
        for step in range(count):
            hopsml.report(step=step, loss=1.0 / (step + 1), acc=0.5)
            hopsml.send(step)
        return {"steps": count}

    received: list[tuple[int, Any]] = []
    run = submit(train, count=4_000)
    run.on_message(lambda rank, value: received.append((rank, value)))
    assert run.result(END_S).metrics["steps"] == 4_000
    rows = [json.loads(line) for line in Path(run.directory.metrics.removeprefix("file://")).read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(4_000))
    wait_until(lambda: len(received) == 8_000, "the values")
    for rank in range(2):
        assert [value for sender, value in received if sender == rank] == list(range(4_000))


def test_await_messages_waits_for_slow_callbacks(store: Path) -> None:
    received, resumed = list[int](), threading.Event()

    def note(rank: int, value: int) -> None:
        resumed.wait()
        received.append(value)

    run = submit(lambda: [hopsml.send(step) for step in range(50)], workers=1)
    run.on_message(note)
    run.result(END_S)
    assert received == []
    threading.Timer(0.2, resumed.set).start()
    run.await_messages()
    assert received == list(range(50))


def test_values_sent_before_a_subscription_are_retained_and_receive_does_not_wait(store: Path) -> None:
    def train() -> list[Any]:
        for number in range(200):
            hopsml.send(number)
        start_s = awake()
        return [hopsml.receive(), hopsml.receive(timeout=0.05), awake() - start_s < 5]

    run = submit(train, workers=1)
    assert run.result(END_S).value == [None, None, True]
    received: list[Any] = []
    run.on_message(lambda rank, value: received.append(value))
    wait_until(lambda: len(received) == 200, "all of them")
    assert received == list(range(200))


def test_message_functions_do_nothing_outside_a_worker() -> None:
    hopsml.send(1)
    hopsml.elastic.resize(2)
    assert hopsml.receive(timeout=0.01) is None
    with pytest.raises(ArgumentTypeError, match=r"resize\('2'\)"):
        hopsml.elastic.resize("2")  # type: ignore[arg-type]


def test_unpicklable_or_oversized_value_is_refused_by_send(store: Path) -> None:
    def train() -> None:
        hopsml.send(open("/dev/null", "rb"))  # noqa: SIM115

    with pytest.raises(WorkerFailed, match="cannot be sent"):
        submit(train, workers=1).result(END_S)
    run = submit(lambda: hopsml.receive(60), workers=1)
    with pytest.raises(ArgumentError, match="the value has 40 MiB"):
        run.send(bytes(40 << 20))
    wait_until(lambda: 0 in run.state.members, "its worker")
    run.send("go")
    assert run.result(END_S).value == "go"


def test_impossible_resize_of_a_worker_is_noted(store: Path) -> None:
    run = submit(lambda: hopsml.elastic.resize(9), workers=1)
    run.result(END_S)
    wait_until(lambda: any("has a fixed size" in note for note in run.state.notes), "the note")
