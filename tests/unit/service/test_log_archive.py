"""Tests of the zip of a run's logs: complete, and never in memory as a whole."""

from __future__ import annotations

import io
import tracemalloc
import zipfile

import pytest

from hopsml.service.browse.logs import zip_logs
from hopsml.storage.run_dir import RunDir
from tests.helpers.service.project import ProjectOnDisk
from tests.unit.service.test_rest import send_request

pytestmark = pytest.mark.fast

LONG_MB = 48


def test_archive_holds_every_log_unchanged(project: ProjectOnDisk) -> None:
    run = project.run("app_1")
    run.print(0, "hello", "wörld")
    run.print(1, "of rank 1", generation=2)
    (run.folder / "logs" / "g0-rank0.system.jsonl").write_text("{}")
    answer = send_request(project, "/api/runs/app_1/logs.zip")
    assert answer.headers["content-type"] == "application/zip"
    assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''app_1-logs.zip"
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert archive.testzip() is None
        contents = {name: archive.read(name).decode() for name in archive.namelist()}
    assert contents == {"app_1/g0-rank0.log": "hello\nwörld\n", "app_1/g2-rank1.log": "of rank 1\n"}


def test_archive_of_a_run_without_logs_is_empty_and_an_unknown_run_is_an_error(project: ProjectOnDisk) -> None:
    project.run("app_1")
    with zipfile.ZipFile(io.BytesIO(send_request(project, "/api/runs/app_1/logs.zip").content)) as archive:
        assert archive.namelist() == []
    assert send_request(project, "/api/runs/none/logs.zip").status_code == 404


def test_long_log_is_archived_in_bounded_memory(project: ProjectOnDisk) -> None:
    run = project.run("app_1")
    with (run.folder / "logs" / "g0-rank0.log").open("wb") as file:
        file.truncate(LONG_MB << 20)
    tracemalloc.start()
    try:
        pieces = sum(1 for _ in zip_logs(RunDir(str(run.folder)), 1e9))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert pieces > 1 and peak < 16 << 20
