"""Tests of combined counts of several replicas, and of the segments of the request log."""

from __future__ import annotations

import asyncio
import resource
import threading
import time
from datetime import datetime
from pathlib import Path

import pytest

from hopsml.core.metrics import prometheus_text
from hopsml.core.newer_python import UTC
from hopsml.model import serving_load
from hopsml.model.serving_load import ServingLoad, VersionLoad
from hopsml.serving import load_publisher, metrics, request_log
from hopsml.serving.definitions import ServingFolder, ServingLimits
from hopsml.serving.messages import ServingSettings, SupervisorAnswer
from hopsml.serving.metrics import LoadMeter, ReplicaCountsSum, ReplicaMeter
from hopsml.serving.request_log import RequestLog, RequestLogUploader
from hopsml.serving.routes import Route
from hopsml.serving.server_records import ServerRecord

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


def test_load_has_rates_by_version_since_the_last_reading() -> None:
    load = LoadMeter(100.0)
    refused = 'hopsml_requests_total{version="",status="400"}'
    seconds = {'hopsml_request_seconds_sum{version="1"}': 4.0, 'hopsml_request_seconds_count{version="1"}': 20.0}
    load.update({OK: 15, OK.replace("200", "503"): 5, refused: 10, "hopsml_queue_requests": 3, **seconds}, 110.0)
    assert load.versions == [VersionLoad(1, 20, 5, 2.0)]
    assert load.rates == [3.0], "with requests that no version has answered"
    assert (load.seconds, load.waiting) == (0.2, 3)
    load.update({OK: 15, OK.replace("200", "503"): 5, refused: 10, OK.replace("1", "10", 1): 40, **seconds}, 115.0)
    assert load.versions == [VersionLoad(1, 20, 5, 0.0), VersionLoad(10, 40, 0, 8.0)]
    assert (load.rates, load.seconds, load.waiting) == ([3.0, 8.0], None, 0)
    for number in range(metrics.INTERVALS):
        load.update({}, 120.0 + number)
    assert len(load.rates) == metrics.INTERVALS


def published_loads(project: str, most: int) -> list[ServingLoad]:
    """Publish the load of a serving until it was written so often; return what was written, and check its deletion."""
    record = ServerRecord("digits", "0.0.0.0", 8501, "node1", "ana", "", 1, datetime(2026, 11, 28, tzinfo=UTC))
    status = SupervisorAnswer(ready=1, replicas=2, restarts=3, route=Route(1, 4, 5, 0.25))
    written: list[ServingLoad] = []

    async def run() -> None:
        async with load_publisher.published(lambda: status, lambda: {OK: 1.0 + len(written)}, record, project):
            while len(written) < most:
                found = await asyncio.to_thread(serving_load.read_load, "digits", project)
                if found is not None and found not in written:
                    written.append(found)
                await asyncio.sleep(0.01)

    asyncio.run(run())
    assert serving_load.read_load("digits", project) is None, "it is deleted when the serving ends"
    return written


def test_load_of_a_serving_is_published_until_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_load, "PUBLISH_S", 0.02)
    first, second = published_loads(f"file://{tmp_path}", 2)
    assert (first.replicas, first.ready, first.restarts, first.version) == (2, 1, 3, 4)
    assert (first.canary, first.share, first.url) == (5, 0.25, "http://node1:8501")
    assert first.versions[0].version == 1 and len(second.rates) > len(first.rates)
    assert second.updated_s > first.updated_s


def test_store_that_cannot_be_written_does_not_end_a_serving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(serving_load, "PUBLISH_S", 0.02)
    (tmp_path / "Serving").write_text("no folder")

    async def run() -> None:
        record = ServerRecord("digits", "::1", 1, "node1", "ana", "", 1, datetime(2026, 11, 28, tzinfo=UTC))
        calls: list[int] = []

        def counts() -> dict[str, float]:
            calls.append(1)
            return {}

        async with load_publisher.published(SupervisorAnswer, counts, record, f"file://{tmp_path}"):
            while len(calls) < 3:
                await asyncio.sleep(0.01)

    asyncio.run(run())
    assert len([one for one in caplog.records if "is not shown" in one.message]) == 1, "once, not in each interval"


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
