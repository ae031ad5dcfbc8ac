"""Tests of a search's log during an outage of its store: retries and messages."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

from hopsml.core.callbacks import RECORDS
from hopsml.errors import StorageError
from hopsml.experiment.searches import recorded
from hopsml.experiment.searches.recorded import SearchWriter
from tests.helpers.cluster.workloads import wait_until

pytestmark = pytest.mark.fast


class Journal:
    """A store that fails so many times."""

    def __init__(self, failures: int) -> None:
        self.failures, self.asked, self.lines = failures, 0, list[str]()

    def add(self, lines: Sequence[str]) -> None:
        self.asked += 1
        if self.asked <= self.failures:
            raise StorageError("nobody answers")
        self.lines += lines


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"FIRST_RETRY_S": 0.01, "LONGEST_RETRY_S": 0.04, "LOOK_S": 0.001}.items():
        monkeypatch.setattr(recorded, name, seconds)


def test_failing_event_log_is_noted_once_and_so_is_its_recovery() -> None:
    journal, notes = Journal(6), list[str]()
    writing = SearchWriter(journal, notes.append)
    try:
        writing.append_events(["a", "b"], lambda: True)
        writing.append_events(["c"], lambda: True)
    finally:
        writing.close()
    assert journal.lines == ["a", "b", "c"] and journal.asked == 8
    assert len(notes) == 2 and "cannot be written" in notes[0] and "is written again" in notes[1]


def test_cancelled_search_does_not_wait_for_its_event_log() -> None:
    journal, notes = Journal(10**9), list[str]()
    writing = SearchWriter(journal, notes.append)
    try:
        with pytest.raises(StorageError):
            writing.append_events(["a"], lambda: journal.asked < 3)
    finally:
        writing.close()
    assert journal.asked == 3 and len(notes) == 1


def test_status_files_of_a_search_are_retried_slowly_while_the_store_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recorded, "EVERY_S", 0.001)
    monkeypatch.setattr(recorded, "FIRST_RETRY_S", 0.05)
    requests: list[str] = []
    folder = tmp_path / "run"
    folder.write_text("in the way")

    def content(name: str) -> bytes:
        requests.append(name)
        return b"content"

    writing = SearchWriter(Journal(0), lambda text: None)
    try:
        with caplog.at_level(logging.WARNING):
            for number in range(2000):
                for name in ("best.json", "trials.json"):
                    writing.queue_file(f"file://{folder}/{name}", lambda name=name: content(name))  # type: ignore[misc]
                if number % 100 == 0:
                    wait_until(lambda: requests, "an attempt")
            tried = len(requests)
            folder.unlink()
            wait_until(lambda: (folder / "best.json").exists() and (folder / "trials.json").exists(), "both files")
    finally:
        writing.close()
    assert tried <= 12 and RECORDS.wait_until_delivered(10)  # handlers are called on a thread of their own
    assert [("written again" in line, "could not" in line) for line in caplog.messages] == [
        (False, True),
        (True, False),
    ]
