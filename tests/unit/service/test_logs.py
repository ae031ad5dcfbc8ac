"""Tests of the merged logs of all ranks: order, filters, search, growth, endless lines."""

from __future__ import annotations

import pytest

from hopsml.errors import ArgumentError
from hopsml.service.browse import logs
from hopsml.service.browse.logs import LogQuery, LogView, level_of, time_of
from hopsml.storage.run_dir import RunDir
from tests.helpers.service.project import ProjectOnDisk, RunOnDisk

pytestmark = pytest.mark.fast


XLA = b"2026-11-27 04:05:17.123456: E external/local_xla/xla/stream_executor/cuda/cuda_platform.cc:51] "


def view_of(run: RunOnDisk, **query: object) -> LogView:
    view = LogView(RunDir(str(run.folder)), LogQuery(**query))  # type: ignore[arg-type]
    view.more(10.0)
    return view


def texts(view: LogView, offset: int = 0, limit: int = 1000) -> list[str]:
    return [line.text for line in view.page(offset, limit).lines]


@pytest.mark.parametrize(
    ("line", "level"),
    [
        (b"2026-11-27 04:05:17,123 INFO digits: step 1", 1),
        (b"WARNING:root:careful", 2),
        (b"E0127 failed", 3),
        (b"Traceback (most recent call last):", 3),
        (b"ValueError: no", 3),
        (b"loss 0.3", None),
        (b"INFORMATION", None),
        (b"I am a worker", None),
        (b"2026-11-27 04:05:17.123456: W tensorflow/core/framework/op.cc:123] slow", 2),
        (b"2026-11-27 04:05:17.123456: E tensorflow/core/framework/op.cc:123] broken", 3),
        (XLA + b"failed call to cuInit: INTERNAL: CUDA error: Failed call to cuInit: UNKNOWN ERROR (303)", 1),
        (XLA + b"failed call to cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected", 1),
        (XLA + b"failed call to cuInit: CUDA_ERROR_OUT_OF_MEMORY: out of memory", 3),
        (b"E0000 00:00:1764379200.123456    4242 cuda_dnn.cc:8579] Unable to register cuDNN factory: Attempting to", 1),
        (
            b"2026-11-27 04:05:17.123456: W local_rendezvous.cc:404] Local rendezvous is aborting with status: "
            b"OUT_OF_RANGE: End of sequence",
            1,
        ),
    ],
)
def test_level_is_parsed_from_a_log_line(line: bytes, level: int | None) -> None:
    assert level_of(line) == level


def test_time_is_parsed_from_a_log_line() -> None:
    first, later = time_of(b"2026-11-27 04:05:17,123 a"), time_of(b"[2026-11-27T04:05:18.5] b")
    assert first is not None and later is not None and later - first == pytest.approx(1.377)
    assert time_of(b"2026-02-31 04:05:17 no such day") is None and time_of(b"step 1") is None


def test_ranks_are_interleaved_by_time(project: ProjectOnDisk) -> None:
    run = project.run("app_1")
    run.print(0, "2026-11-27 04:00:00 a", "  indented", "2026-11-27 04:00:02 c")
    run.print(1, "2026-11-27 04:00:01 b", "2026-11-27 04:00:03 d")
    view = view_of(run)
    assert [text[-1] for text in texts(view)] == ["a", "d", "b", "c", "d"]
    page = view.page(0, 10)
    assert [line.rank for line in page.lines] == [0, 0, 1, 0, 1]
    assert (page.total, page.ranks, page.read == page.bytes) == (5, [0, 1], True)
    assert texts(view, -2) == ["2026-11-27 04:00:02 c", "2026-11-27 04:00:03 d"]


def test_log_is_filtered_by_rank_level_and_text(project: ProjectOnDisk) -> None:
    run = project.run("app_1")
    run.print(0, "INFO begin", "ERROR broken", "  its traceback", "INFO end")
    run.print(1, "WARNING slow")
    assert texts(view_of(run, rank=1)) == ["WARNING slow"]
    assert texts(view_of(run, level="error")) == ["ERROR broken", "  its traceback"]
    assert texts(view_of(run, level="warning")) == ["ERROR broken", "  its traceback", "WARNING slow"]
    assert texts(view_of(run, text="BROKEN")) == ["ERROR broken"]
    with pytest.raises(ArgumentError, match="level='loud'"):
        view_of(run, level="loud")


def test_log_search_finds_forwards_and_backwards(project: ProjectOnDisk) -> None:
    run = project.run("app_1")
    run.print(0, *(f"step {number}" for number in range(5000)))
    view = view_of(run)
    assert view.find("STEP 4321", 0) == 4321
    assert view.find("step 4321", 4322) is None
    assert view.find("step 43", 4000, backwards=True) == 439
    assert view.find("step 1", 4999, backwards=True) == 1999


def test_growing_log_is_read_incrementally_and_its_last_line_when_complete(project: ProjectOnDisk) -> None:
    run = project.run("app_1", state=None)
    run.print(0, "one", "tw", end="")
    view = view_of(run)
    assert texts(view) == ["one"]
    run.print(0, "o", "three")
    view.more(10.0)
    assert texts(view) == ["one", "two", "three"]
    run.print(1, "last words", end="")
    run.write("status.json", {"state": "FINISHED"})
    view.more(10.0)
    assert texts(view) == ["one", "two", "three", "last words"]
    view.more(10.0)
    assert view.page(0, 0).total == 4


def test_log_read_in_slices_is_equal_to_one_read_at_once(
    project: ProjectOnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "CHUNK", 1000)
    run = project.run("app_1")
    for rank in range(3):
        run.print(rank, *(f"2026-11-27 04:{n // 60:02}:{n % 60:02} rank {rank} line {n}" for n in range(2000)))
    view = LogView(RunDir(str(run.folder)), LogQuery())
    calls = 0
    while view.page(0, 0).total < 6000:
        view.more(0.0)
        calls += 1
    assert calls > 3
    found = texts(view, 0, 2000)
    assert found[:3] == [f"2026-11-27 04:00:00 rank {rank} line 0" for rank in range(3)]
    assert found[-1].endswith("line 666")


def test_binary_overlong_and_coloured_lines_are_read(project: ProjectOnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "CHUNK", 4096)
    run = project.run("app_1")
    (run.folder / "logs" / "g0-rank0.log").write_bytes(
        b"\xff\xfe\x00 raw\n" + b"x" * 50_000 + b"\n\n\x1b[31mred\x1b[0m\r\n"
    )
    view = view_of(run)
    found = texts(view)
    assert found[0].endswith("raw") and found[-1] == "\x1b[31mred\x1b[0m"
    assert len(found) > 5 and max(map(len, found)) <= logs.LONGEST_LINE and found[-2] == ""


def test_run_without_logs_has_no_lines(project: ProjectOnDisk) -> None:
    page = view_of(project.run("app_1")).page(0, 100)
    assert (page.lines, page.total, page.bytes, page.ranks) == ([], 0, 0, [])
    with pytest.raises(ArgumentError):
        view_of(project.run("app_2")).page(0, 5000)
