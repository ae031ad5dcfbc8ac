"""Tests of combined counts of several replicas, and of the segments of the request log."""

from __future__ import annotations

import asyncio
import resource
import threading
import time
from pathlib import Path

import pytest

from hopsml.core.metrics import prometheus_text
from hopsml.serving import metrics, request_log
from hopsml.serving.definitions import ServingFolder, ServingLimits
from hopsml.serving.messages import ServingSettings
from hopsml.serving.metrics import ReplicaCountsSum, ReplicaMeter
from hopsml.serving.request_log import RequestLog, RequestLogUploader
from hopsml.serving.routes import Route

pytestmark = pytest.mark.fast
OK = 'hopsml_requests_total{version="1",status="200"}'


def test_counts_of_replicas_add_up_and_never_fall_when_one_ends() -> None:
    total = ReplicaCountsSum()
    total.update(0, {OK: 5, "hopsml_queue_requests": 2})
    total.update(1, {OK: 3, "hopsml_queue_requests": 1})
    assert total.total() == {OK: 8, "hopsml_queue_requests": 3}
    total.mark_ended(0)
    assert total.total() == {OK: 8, "hopsml_queue_requests": 1}
    total.update(0, {OK: 1})
    assert total.total()[OK] == 9
    total.update(1, {OK: 2})  # an older word of it came later
    assert total.total()[OK] == 9


def test_histogram_buckets_are_ordered_by_their_bounds() -> None:
    meter = ReplicaMeter()
    for rows in (1, 3, 2000):
        meter.count_batch(rows)
    lines = [line for line in prometheus_text(meter.counts, metrics.FAMILIES).splitlines() if "bucket" in line]
    assert [line.split()[1] for line in lines] == ["1", "1", *["2"] * (len(lines) - 3), "3"]
    assert lines[-1].startswith('hopsml_batch_rows_bucket{le="+Inf"}')


def test_log_segment_is_closed_when_it_is_long_or_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_log, "SEGMENT_BYTES", 20)
    log = RequestLog(tmp_path, "0")
    log.write(b"0123456789\n")
    log.flush(now_s=0.0)
    assert [path.name for path in tmp_path.iterdir()] == ["0-1.part"]
    log.write(b"0123456789\n")
    log.flush(now_s=1.0)
    assert [path.name for path in tmp_path.iterdir()] == ["0-1.jsonl"]
    log.write(b"x\n")
    log.flush(now_s=2.0)
    log.flush(now_s=2.0 + request_log.SEGMENT_S)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0-1.jsonl", "0-2.jsonl"]
    log.close()
    assert len(list(tmp_path.iterdir())) == 2


def test_log_lines_beyond_the_space_limit_are_dropped_and_counted(tmp_path: Path) -> None:
    log = RequestLog(tmp_path, "0", most_bytes=10)
    log.write(b"0123\n")
    log.close()
    log.write(b"012345\n")
    log.write(b"0\n")
    log.close()
    assert log.dropped == 2 and (tmp_path / "0-1.jsonl").read_bytes() == b"0123\n"
    (tmp_path / "0-1.jsonl").unlink()  # shipped
    log.write(b"again\n")
    log.close()
    assert (tmp_path / "0-2.jsonl").read_bytes() == b"again\n"


def test_segment_of_a_killed_writer_is_cut_to_complete_lines(tmp_path: Path) -> None:
    (tmp_path / "0-1.part").write_bytes(b"whole\nhal")
    (tmp_path / "0-2.part").write_bytes(b"hal")
    names = [path.name for path in tmp_path.iterdir()]
    assert sorted(request_log.abandoned_segments([*names, "1-1.part", "0-0.jsonl"], {"1"})) == ["0-1.part", "0-2.part"]
    for name in names:
        request_log.complete_segment_file(tmp_path / name)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("0-1.jsonl", b"whole\n")]


def test_lines_before_a_long_incomplete_line_are_retained(tmp_path: Path) -> None:
    (tmp_path / "0-1.part").write_bytes(b"first\nsecond\n" + b"x" * (9 << 20))
    (tmp_path / "0-2.part").write_bytes(b"x" * (9 << 20))
    for name in ("0-1.part", "0-2.part"):
        request_log.complete_segment_file(tmp_path / name)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("0-1.jsonl", b"first\nsecond\n")]


def test_partially_written_lines_are_removed_completely(tmp_path: Path) -> None:
    """A file-size limit accepts the first part of a write as a full disk does, and fails only the next write."""
    log = RequestLog(tmp_path, "0")
    log.write(b"0123456789\n")
    log.flush(now_s=0.0)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, hard))
    try:
        log.write(b"abcdefghij\n")
        log.flush(now_s=0.0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    log.write(b"again\n")
    log.close()
    assert log.dropped == 1 and (tmp_path / "0-1.jsonl").read_bytes() == b"0123456789\nagain\n"


def test_final_shipping_waits_for_a_segment_in_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last pass starts while an abandoned one is uploading a segment."""
    monkeypatch.setattr(request_log, "SEGMENT_BYTES", 1)
    folder = ServingFolder(tmp_path / "serving")
    written = RequestLog(folder.requests, f"0-{2**22 + 1}")
    for number in range(5):
        written.write(b"line %d\n" % number)
        written.flush()
    written.close()
    project = f"file://{tmp_path}/project"
    settings = ServingSettings("digits", project, "digits", "127.0.0.1", 0, 1, True, ServingLimits(), Route(1, 1), {})
    shipper = RequestLogUploader(folder, settings)
    upload, begun = shipper._upload, threading.Event()

    def slow(path: Path) -> None:
        begun.set()
        time.sleep(0.05)
        upload(path)

    monkeypatch.setattr(shipper, "_upload", slow)
    first = threading.Thread(target=shipper._ship)
    first.start()
    begun.wait()
    asyncio.run(shipper.upload_remaining())
    first.join()
    assert len(list((tmp_path / "project").rglob("*.jsonl*"))) == 5 and not list(folder.requests.glob("*"))
