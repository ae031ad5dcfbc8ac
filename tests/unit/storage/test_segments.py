"""Tests of lines in segments: ordered, whole, by several writers, on a disk and on a store that cannot append."""

from __future__ import annotations

import errno
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest

from hopsml.errors import StorageError
from hopsml.storage import segments
from hopsml.storage.filesystem import for_url

pytestmark = pytest.mark.fast


@pytest.fixture(params=["disk", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "disk":
        return f"file://{tmp_path}/journal"
    return f"memory://{uuid.uuid4().hex}/journal"


def test_segment_lines_are_read_in_order(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "LONG_BYTES", 200)
    writer, number = segments.register_writer(folder, ["first"])
    assert number == 1
    for batch in range(10):
        writer.add([f"{batch}-{line} " + "x" * 20 for line in range(3)])
    found = segments.read_lines_by_writer(folder)
    assert list(found) == [1] and found[1][0] == "first" and len(found[1]) == 31
    assert [line.split()[0] for line in found[1][1:]] == [f"{batch}-{line}" for batch in range(10) for line in range(3)]
    assert len(segments.list_segments(folder)) > 3


def test_later_writer_follows_the_earlier_ones(folder: str) -> None:
    first, _ = segments.register_writer(folder, ["a"])
    second, number = segments.register_writer(folder, ["b"])
    first.add(["a2"])
    second.add(["b2", "line\u2028separator"])
    assert number == 2 and segments.read_lines_by_writer(folder) == {
        1: ["a", "a2"],
        2: ["b", "b2", "line\u2028separator"],
    }


def test_concurrent_writers_have_different_numbers(tmp_path: Path) -> None:
    numbers: list[int] = []
    threads = [
        threading.Thread(target=lambda: numbers.append(segments.register_writer(f"file://{tmp_path}", ["x"])[1]))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == [1, 2, 3, 4, 5, 6]


def test_unfinished_line_of_a_killed_writer_is_omitted(tmp_path: Path) -> None:
    writer, _ = segments.register_writer(f"file://{tmp_path}", ["first"])
    writer.add(["second"])
    with (tmp_path / "0001-000001.jsonl").open("a") as file:
        file.write('["ask", 3, {"x')
    assert segments.read_lines_by_writer(f"file://{tmp_path}") == {1: ["first", "second"]}


def test_lines_can_be_added_again_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"file://{tmp_path}"
    writer, _ = segments.register_writer(url, ["first"])
    system: Any = type(for_url(url))
    usual = system.append_bytes

    def half(self: Any, url: str, data: bytes) -> None:
        usual(self, url, data[: len(data) // 2])
        raise StorageError(f"cannot append to {url}: {errno.errorcode[errno.ENOSPC]}", url)

    monkeypatch.setattr(system, "append_bytes", half)
    with pytest.raises(StorageError):
        writer.add(["second", "third"])
    monkeypatch.setattr(system, "append_bytes", usual)
    writer.add(["second", "third"])
    writer.add(["fourth"])
    assert segments.read_lines_by_writer(url) == {1: ["first", "second", "third", "fourth"]}


def test_segment_that_is_not_utf8_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "0001-000001.jsonl").write_bytes(b'["a"]\n["\xff"]\n')
    with pytest.raises(StorageError, match=r"0001-000001\.jsonl: it is not UTF-8"):
        segments.read_lines_by_writer(str(tmp_path))


def test_segments_are_empty_before_the_first_writer(folder: str) -> None:
    assert segments.list_segments(folder) == [] and segments.read_lines_by_writer(folder) == {}
