"""Tests of the bytes that a worker and its children count, and of the memory that their agent reads."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator

import pytest

from hopsml.cluster.shared import commit_slots
from hopsml.cluster.shared.commit_slots import CommitSlots
from hopsml.core import traffic

pytestmark = pytest.mark.fast


@pytest.fixture
def slots(monkeypatch: pytest.MonkeyPatch) -> Iterator[CommitSlots]:
    monkeypatch.setattr(traffic, "_traffic", traffic._Traffic())
    made = CommitSlots.create()
    yield made
    made.close()


def in_child(action: Callable[[], None]) -> None:
    """Call a function in a forked process, and wait for its end."""
    child = os.fork()
    if not child:
        action()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_bytes_are_counted_by_purpose_if_anybody_reads_them(slots: CommitSlots) -> None:
    traffic.count(traffic.STORAGE, received=7)
    assert slots.traffic() == {"collective": (0, 0), "feed": (0, 0), "storage": (0, 0)}
    traffic.set_traffic_reporter(slots.record_traffic)
    traffic.count(traffic.STORAGE, received=5)
    traffic.count(traffic.STORAGE, received=1, sent=10)
    traffic.count(traffic.FEED, received=3)
    assert slots.traffic() == {"collective": (0, 0), "feed": (3, 0), "storage": (6, 10)}


def test_bytes_of_children_are_added_and_kept_after_their_end(slots: CommitSlots) -> None:
    traffic.set_traffic_reporter(slots.record_traffic)
    traffic.count(traffic.STORAGE, received=5)
    for _ in range(2):
        in_child(lambda: traffic.count(traffic.STORAGE, received=100))
    traffic.count(traffic.STORAGE, received=1)
    assert slots.traffic()["storage"] == (206, 0)


def test_further_children_are_not_counted_when_all_cells_are_taken(
    slots: CommitSlots, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_slots, "_TRAFFIC_CELLS", 1)
    traffic.set_traffic_reporter(slots.record_traffic)
    traffic.count(traffic.FEED, received=5)
    in_child(lambda: traffic.count(traffic.FEED, received=100))
    assert slots.traffic()["feed"] == (5, 0)


def test_counters_of_the_collective_are_memory_that_the_agent_reads(slots: CommitSlots) -> None:
    address = slots.collective_counters()
    traffic.set_traffic_reporter(slots.record_traffic, address)
    assert traffic.collective_counters() == address and address % 8 == 0
    counters = (ctypes.c_uint64 * 2).from_address(address)
    counters[0], counters[1] = 1 << 40, 8
    traffic.count(traffic.STORAGE, sent=2)
    assert slots.traffic() == {"collective": (1 << 40, 8), "feed": (0, 0), "storage": (0, 2)}
    slots.close()
    counters[0] += 1  # native code writes at any time
    assert slots.traffic() == {}
