"""Tests of previews of a run's files: pictures, heads of tables, refusals."""

from __future__ import annotations

import io
import resource
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopsml.errors import ArgumentError
from hopsml.service.browse import files, tables
from tests.helpers.service.project import ProjectOnDisk, RunOnDisk
from tests.unit.service.test_rest import send_request

pytestmark = pytest.mark.fast

SVG = (
    b'<?xml version="1.0"?>\n<!-- drawn -->\n<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)">'
    b"<script>alert(2)</script></svg>"
)


@pytest.fixture
def run(project: ProjectOnDisk) -> RunOnDisk:
    return project.run("app_1")


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n\0\0", "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (SVG, "image/svg+xml"),
        (b"\xef\xbb\xbf <svg>", "image/svg+xml"),
        (b"<!doctype html><svg>", ""),
        (b"<html><svg></svg></html>", ""),
        (b"<svgx>", ""),
        (b"<!-- a --> <!DOCTYPE svg PUBLIC 'x'>\n<svg>", "image/svg+xml"),
        (b"<!---->" * 146 + b"<s", ""),  # each way to divide them into comments is not tried
        (b"RIFF....WEBP", ""),
        (b"", ""),
    ],
)
def test_picture_type_is_detected_from_its_content(head: bytes, kind: str) -> None:
    assert files.media_type(head) == kind


def test_picture_is_sent_with_its_type_as_a_download(project: ProjectOnDisk, run: RunOnDisk) -> None:
    (run.folder / "plot.svg").write_bytes(SVG)
    sent = send_request(project, "/api/runs/app_1/images/plot.svg")
    assert sent.content == SVG and sent.headers["content-type"] == "image/svg+xml"
    assert sent.headers["content-disposition"].startswith("attachment;")
    assert "default-src 'none'; script-src 'self'" in sent.headers["content-security-policy"]
    assert sent.headers["x-content-type-options"] == "nosniff"


def test_file_that_is_no_picture_is_refused_as_one(project: ProjectOnDisk, run: RunOnDisk) -> None:
    (run.folder / "page.png").write_bytes(b"<html><script>alert(1)</script>")
    (run.folder / "empty.png").write_bytes(b"")
    with open(run.folder / "large.png", "wb") as large:
        large.write(b"\x89PNG\r\n\x1a\n")
        large.truncate(files.MOST_PICTURE_BYTES + 1)
    for name, why in {
        "page.png": "no PNG",
        "empty.png": "no PNG",
        "large.png": "up to 16 MiB",
        "logs": "up to",
    }.items():
        refused = send_request(project, f"/api/runs/app_1/images/{name}")
        assert refused.status_code == 400 and why in refused.json()["error"], name
        assert refused.json()["remedy"] == "download it"
    assert send_request(project, "/api/runs/app_1/images/none.png").status_code == 404
    assert send_request(project, "/api/runs/app_1/images/..%2Fapp_2%2Fx.png").status_code in (400, 404)


def test_head_of_a_csv_file_is_returned(project: ProjectOnDisk, run: RunOnDisk) -> None:
    (run.folder / "few.csv").write_text('\ufeffname,text\na,"x,\ny"\nb\n', encoding="utf-8")
    found = send_request(project, "/api/runs/app_1/tables/few.csv").json()
    rows = [["a", "x,\ny"], ["b"]]
    assert found == {"columns": ["name", "text"], "rows": rows, "total": 2, "is_cut": False, "types": []}
    (run.folder / "none.tsv").write_text("")
    assert send_request(project, "/api/runs/app_1/tables/none.tsv").json()["columns"] == []


def test_large_csv_file_is_read_partly_and_only_complete_rows_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "large.csv"
    path.write_text("a,b\n" + f"1,{'x' * 4000}\n" * 1000)
    found = tables.read_first_rows(f"file://{path}")
    assert found.is_cut and found.total is None and 0 < len(found.rows) < tables.ROWS
    assert {len(row[1]) for row in found.rows} == {tables.LETTERS}
    path.write_text("\n".join(",".join("1" * 200) for _ in range(500)))
    found = tables.read_first_rows(f"file://{path}")
    assert (len(found.columns), len(found.rows), found.is_cut) == (tables.COLUMNS, tables.ROWS, True)


def parquet(rows: int, **more: object) -> bytes:
    file = io.BytesIO()
    table = pa.table({"n": range(rows), "blob": [b"abc"] * rows, "deep": [{"x": [1, None]}] * rows})
    pq.write_table(table, file, **more)
    return file.getvalue()


def test_head_of_a_parquet_file_is_returned(project: ProjectOnDisk, run: RunOnDisk) -> None:
    (run.folder / "rows.parquet").write_bytes(parquet(1000, row_group_size=64))
    found = send_request(project, "/api/runs/app_1/tables/rows.parquet").json()
    assert found["columns"] == ["n", "blob", "deep"] and found["total"] == 1000 and found["is_cut"]
    assert found["types"][:2] == ["int64", "binary"]
    assert found["rows"][:2] == [["0", "3 bytes", "{'x': [1, None]}"], ["1", "3 bytes", "{'x': [1, None]}"]]
    (run.folder / "none.parquet").write_bytes(parquet(0))
    none = send_request(project, "/api/runs/app_1/tables/none.parquet").json()
    assert (none["rows"], none["total"], none["is_cut"]) == ([], 0, False)


def test_first_pages_of_a_large_parquet_file_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "large.parquet"
    values = [f"{number:08}" * 32 for number in range(20_000)]
    pq.write_table(pa.table({"x": values}), path, compression="none", use_dictionary=False, data_page_size=16 << 10)
    assert path.stat().st_size > 4 << 20
    monkeypatch.setattr(tables, "PARQUET_BYTES", 1 << 20)
    assert tables.read_first_rows(f"file://{path}").rows[1] == [values[1][: tables.LETTERS]]
    monkeypatch.setattr(tables, "PARQUET_BYTES", 1 << 10)
    with pytest.raises(ArgumentError, match="its rows cannot be shown"):
        tables.read_first_rows(f"file://{path}")


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + b"\xff" * 100 + b"PAR1", parquet(3)[:-20]])
def test_invalid_parquet_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.parquet").write_bytes(content)
    with pytest.raises(ArgumentError, match=r"its rows cannot be shown .*; download it"):
        tables.read_first_rows(f"file://{tmp_path}/x.parquet")
    (tmp_path / "x.bin").write_bytes(content)
    with pytest.raises(ArgumentError, match=r"of \*\.csv"):
        tables.read_first_rows(f"file://{tmp_path}/x.bin")


def test_parquet_rows_that_unpack_to_gigabytes_are_refused(tmp_path: Path) -> None:
    """A file of a few kilobytes whose hundred rows share a text of 16 MiB, without a stored schema."""
    path = tmp_path / "bomb.parquet"
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 100), pa.array(["x" * (16 << 20)]))
    pq.write_table(pa.table({"a": text}), path, compression="zstd", store_schema=False)
    assert path.stat().st_size < 100_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ArgumentError, match="download it"):
        tables.read_first_rows(f"file://{path}")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB
