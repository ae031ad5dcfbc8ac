"""Tests of changes of a driver's slots, requested and answered by files."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopsml.errors import CoordinatorLost
from hopsml.service.driver import driver_requests
from hopsml.service.driver.driver_requests import SlotsWatch
from hopsml.service.engine.base import SlotChannel
from hopsml.service.lifecycle import SlotsAnswer
from tests.helpers.cluster.workloads import wait_until

pytestmark = pytest.mark.fast


class SlotHolder:
    """Slots that a driver holds, within its grant from the next poll on."""

    def __init__(self) -> None:
        self.allowed: list[int] = []
        self.held, self.is_gone = 0, False

    def hold(self, slots: int) -> int:
        if self.is_gone:
            raise CoordinatorLost("it is closed")
        return self.held


def test_slots_watch_follows_the_grant_and_answers_with_the_slots_it_holds(tmp_path: Path) -> None:
    project, holder = f"file://{tmp_path}", SlotHolder()
    watch = SlotsWatch("t-1", 3, holder.allowed.append, holder.hold)
    assert holder.allowed == [3] and driver_requests.answered_slots(project, "t-1") is None
    holder.held = 3
    watch.poll(project)
    assert driver_requests.answered_slots(project, "t-1") == (3, 3)
    driver_requests.send_slots(project, "t-1", 1)
    watch.poll(project)
    assert holder.allowed == [3, 1] and driver_requests.answered_slots(project, "t-1") == (
        1,
        3,
    )  # the grant is received, but the slots are not released
    holder.is_gone = True
    with pytest.raises(CoordinatorLost):
        watch.poll(project)
    holder.held, holder.is_gone = 1, False
    watch.poll(project)
    assert holder.allowed == [3, 1] and driver_requests.answered_slots(project, "t-1") == (1, 1)


NONSENSE = [
    '["a", "b"]',
    "[[1], [2]]",
    "[1e999, 1]",
    "[" * 100_000,
    "\0" * 200,
    '{"a": 1, "b": 2}',
    "\xff\x80",
    "9" * 99,
]


@pytest.mark.parametrize("text", ["", "1", "x", "[1", "[1]", "{}", *NONSENSE])
def test_incomplete_slot_files_are_ignored(tmp_path: Path, text: str) -> None:
    (tmp_path / "Jobs").mkdir()
    for name in ("t-1.held", "t-1.slots"):
        (tmp_path / "Jobs" / name).write_bytes(text.encode("latin-1"))
    assert driver_requests.answered_slots(f"file://{tmp_path}", "t-1") is None
    assert driver_requests.granted_slots(f"file://{tmp_path}", "t-1") == (1 if text == "1" else None)


def test_slot_channel_retries_the_write_and_returns_the_newest_answer(tmp_path: Path) -> None:
    project = f"file://{tmp_path}"
    (tmp_path / "Jobs").write_text("a file, where there should be a folder")
    channel = SlotChannel(project)
    try:
        assert channel.newest_answer("t-1") is None
        channel.write_slots("t-1", 2)
        channel.write_slots("t-1", 2)
        (tmp_path / "Jobs").unlink()

        def is_written() -> bool:
            channel.write_slots("t-1", 2)
            return driver_requests.granted_slots(project, "t-1") == 2

        wait_until(is_written, "the second try")
        driver_requests.answer_slots(project, "t-1", 2, 2)
        wait_until(lambda: channel.newest_answer("t-1") == SlotsAnswer(2, 2), "the answer")
        channel.forget("t-1")
        assert channel.newest_answer("t-1") is None
    finally:
        channel.close()


@pytest.mark.parametrize("text", NONSENSE)
def test_malformed_answer_of_one_job_does_not_stop_polling_of_others(tmp_path: Path, text: str) -> None:
    channel = SlotChannel(f"file://{tmp_path}")
    channel.write_slots("t-1", 2)
    (tmp_path / "Jobs").mkdir(exist_ok=True)
    (tmp_path / "Jobs" / "t-1.held").write_text(text)
    channel.newest_answer("t-1")
    wait_until(channel._reads["t-1"].done, "the answer was read")
    assert channel.newest_answer("t-1") is None
    channel.close()
