"""Tests of the addresses of a job's code and of data sets: their content, and who may read them."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hopsml.errors import ArgumentError, PermissionRefused
from hopsml.service import server
from hopsml.service.browse import datasets
from hopsml.service.store.accounts import Role
from hopsml.storage import trust
from tests.helpers.service.served import JOB, Served

pytestmark = pytest.mark.fast


@pytest.fixture(autouse=True)
def unconfined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Confine nothing beyond one test."""
    monkeypatch.setattr(trust, "_projects", {})
    monkeypatch.setattr(trust, "_shelves", {})


def submit_code(served: Served, role: Any = Role.USER, **files: str) -> str:
    """Submit a job with these files besides its script; return its id."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("train.py", "print('the code')\n")
        for name, text in files.items():
            archive.writestr(name, text)
    digest = served.ask("POST", "workspaces", role, content=content.getvalue()).json()["workspace"]
    answer = served.ask("POST", "jobs", role, json={"spec": JOB, "workspace": digest})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def test_code_of_a_job_is_listed_read_and_previewed(served: Served) -> None:
    job = submit_code(served, **{"data/few.csv": "a,b\n1,2\n"})
    entries = served.ask("GET", f"jobs/{job}/code/files").json()["entries"]
    assert [(one["name"], one["is_folder"]) for one in entries] == [("data", True), ("train.py", False)]
    inner = served.ask("GET", f"jobs/{job}/code/files/data").json()
    assert (inner["path"], [one["name"] for one in inner["entries"]]) == ("data", ["few.csv"])
    sent = served.ask("GET", f"jobs/{job}/code/files/train.py", headers={"range": "bytes=0-4"})
    assert (sent.status_code, sent.content) == (206, b"print") and "attachment" in sent.headers["content-disposition"]
    assert served.ask("GET", f"jobs/{job}/code/tables/data/few.csv").json()["rows"] == [["1", "2"]]
    assert served.ask("GET", f"jobs/{job}/code/images/train.py").status_code == 400


# who asks, and whether that user may read the files of a job of Role.USER
READERS = ((Role.USER, True), (Role.OPERATOR, True), (Role.ADMIN, True), ("bob", False), (Role.VIEWER, False))


@pytest.mark.parametrize("place", ["files", "files/train.py", "images/train.py", "tables/train.py"])
def test_code_is_shown_to_its_owner_and_operators_only(served: Served, place: str) -> None:
    job = submit_code(served)
    for role, may in READERS:
        answer = served.ask("GET", f"jobs/{job}/code/{place}", role)
        assert (answer.status_code != 403) == may, (role, answer.text)
        assert may or b"the code" not in answer.content
    assert served.ask("GET", f"jobs/{job}/code/{place}", headers={"authorization": "Bearer no"}).status_code == 401


@pytest.mark.parametrize("path", ["..%2F..%2Fservice.db", "%2Fetc%2Fpasswd", "../../service.db", "train.py%00", "none"])
def test_path_outside_the_code_is_refused(served: Served, path: str) -> None:
    job = submit_code(served)
    answer = served.ask("GET", f"jobs/{job}/code/files/{path}")
    assert answer.status_code in (400, 404) and answer.json()["remedy"]


def test_link_out_of_the_code_is_refused(served: Served, tmp_path: Path) -> None:
    """Under a local profile, jobs can write into the folder of their code."""
    job = submit_code(served)
    (folder,) = (tmp_path / "workspaces").iterdir()
    (tmp_path / "secret.csv").write_text("a\nthe-servers-key\n")
    os.symlink(tmp_path / "secret.csv", folder / "x.csv")
    os.symlink(tmp_path, folder / "up")
    for place in ("files/x.csv", "tables/x.csv", "images/x.csv", "files/up", "files/up/secret.csv"):
        answer = served.ask("GET", f"jobs/{job}/code/{place}")
        assert answer.status_code in (403, 404) and b"the-servers-key" not in answer.content, place


def test_removed_code_is_explained(served: Served, tmp_path: Path) -> None:
    job = submit_code(served)
    (folder,) = (tmp_path / "workspaces").iterdir()
    folder.rename(tmp_path / "aside")
    assert "submit the job again" in served.ask("GET", f"jobs/{job}/code/files").json()["remedy"]


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    """Yield the folder of a data set in the project's store."""
    folder = tmp_path / "project" / "Datasets" / "digits"
    (folder / "parts").mkdir(parents=True)
    pq.write_table(pa.table({"label": pa.array([1, 2, 3], pa.int8())}), folder / "rows.parquet")
    (folder / "parts" / "b.csv").write_text("x\n1\n")
    return folder


def at(url: str | Path) -> str:
    """Return the query that names a data set."""
    return f"url={quote(str(url), safe='')}"


def test_datasets_with_names_are_listed(served: Served) -> None:
    served.submit(spec=JOB + "dataset: hdfs:///data/digits\n")
    served.submit(spec=JOB + "datasets: {train: hdfs:///data/digits, labels: {url: s3://bucket/labels, fetch: copy}}\n")
    found = {one["url"]: one for one in served.ask("GET", "datasets", Role.VIEWER).json()["datasets"]}
    assert [(job["id"], job["name"]) for job in found["hdfs:///data/digits"]["jobs"]] == [
        ("digits-2", "train"), ("digits-1", ""),
    ]  # fmt: skip
    assert [job["name"] for job in found["s3://bucket/labels"]["jobs"]] == ["labels"]


@pytest.mark.parametrize("as_path", [False, True])
def test_dataset_has_its_size_files_schema_and_first_rows(served: Served, digits: Path, as_path: bool) -> None:
    url = str(digits) if as_path else f"file://{digits}"
    assert served.submit(spec=JOB + f"datasets: {{train: '{url}'}}\n").status_code == 201
    detail = served.ask("GET", f"datasets/detail?{at(url)}").json()
    total = sum(path.stat().st_size for path in digits.rglob("*") if path.is_file())
    assert detail["size"] == {"files": 2, "bytes": total, "is_complete": True} and detail["why"] == ""
    assert [job["name"] for job in detail["jobs"]] == ["train"]
    entries = served.ask("GET", f"datasets/files?{at(url)}").json()["entries"]
    assert [(one["name"], one["is_folder"]) for one in entries] == [("parts", True), ("rows.parquet", False)]
    head = served.ask("GET", f"datasets/tables/rows.parquet?{at(url)}").json()
    assert (head["columns"], head["types"], head["rows"][0], head["total"]) == (["label"], ["int8"], ["1"], 3)
    assert served.ask("GET", f"datasets/files/parts/b.csv?{at(url)}").content == b"x\n1\n"
    assert served.ask("GET", f"datasets/tables/parts/b.csv?{at(url)}").json()["rows"] == [["1"]]
    for path in ("..%2Fother", "../other", "%2Fetc%2Fpasswd"):
        assert served.ask("GET", f"datasets/files/{path}?{at(url)}").status_code in (400, 404)


def test_dataset_of_one_file_appears_as_a_folder_with_this_file(served: Served, digits: Path) -> None:
    file = f"file://{digits}/rows.parquet"
    (digits / "other.csv").write_text("not,yours\n")
    served.submit(spec=JOB + f"dataset: {file}\n")
    assert served.ask("GET", f"datasets/detail?{at(file)}").json()["size"]["files"] == 1
    (entry,) = served.ask("GET", f"datasets/files?{at(file)}").json()["entries"]
    assert entry["name"] == "rows.parquet"
    assert served.ask("GET", f"datasets/tables/rows.parquet?{at(file)}").json()["total"] == 3
    assert served.ask("GET", f"datasets/files/other.csv?{at(file)}").status_code == 404


@pytest.mark.parametrize("place", ["files", "files/rows.parquet", "tables/rows.parquet", "images/rows.parquet"])
def test_files_of_a_dataset_are_for_users_whose_jobs_name_it_and_operators(
    served: Served, digits: Path, place: str
) -> None:
    url = f"file://{digits}"
    served.submit(spec=JOB + f"dataset: {url}\n")
    for role, may in READERS:
        answer = served.ask("GET", f"datasets/{place}?{at(url)}", role)
        assert (answer.status_code != 403) == may, (role, answer.text)
    for role in ("bob", Role.VIEWER):
        detail = served.ask("GET", f"datasets/detail?{at(url)}", role).json()
        assert detail["size"] is None and detail["why"] and detail["count"] == 1
    served.submit("bob", spec=JOB + f"datasets: {{mine: '{url}'}}\n")
    assert served.ask("GET", f"datasets/files?{at(url)}", "bob").status_code == 200


def test_dataset_outside_of_the_named_stores_is_not_read(served: Served, tmp_path: Path) -> None:
    """The server would read it with its own rights, and connect to any address."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key.csv").write_text("the-servers-key\n")
    inside = tmp_path / "project" / "Datasets"
    inside.mkdir(parents=True)
    os.symlink(tmp_path / "secret", inside / "link")
    outside = (
        f"file://{tmp_path}/secret", f"{tmp_path}/secret/key.csv", f"file://{inside}/../../secret",
        f"file://{inside}x/digits", "http://169.254.169.254/latest", "s3://bucket/x", f"file://{tmp_path}/project/Serving",
    )  # fmt: skip
    for url in (*outside, f"file://{inside}/link"):
        assert (
            served.submit(
                spec=JOB + f"dataset: '{url}'\n" if "://" in url else JOB + f"datasets: {{a: {url}}}\n"
            ).status_code
            == 201
        )
        for role in (Role.USER, Role.ADMIN):
            for place in ("files", "files/key.csv", "tables/key.csv"):
                answer = served.ask("GET", f"datasets/{place}?{at(url)}", role)
                assert answer.status_code in (403, 404) and b"the-servers-key" not in answer.content, (url, place)
            assert served.ask("GET", f"datasets/detail?{at(url)}", role).json()["size"] is None


def test_dataset_that_no_job_names_is_not_read(served: Served, digits: Path) -> None:
    for place in ("detail", "files", "files/rows.parquet"):
        answer = served.ask("GET", f"datasets/{place}?{at(f'file://{digits}')}", Role.ADMIN)
        assert answer.status_code == 404 and "no job names" in answer.json()["error"]


def test_size_of_a_dataset_is_counted_up_to_a_limit(digits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "MOST_FOLDERS", 1)
    assert datasets.size(f"file://{digits}") == datasets.DatasetSize(1, (digits / "rows.parquet").stat().st_size, False)


def test_folders_of_datasets_are_named_by_the_administrator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.settings, "default_fs", lambda: "hdfs://ns1")
    wanted = server.ServerSettings(
        tmp_path, project_url="hdfs:///Projects/demo", datasets=("hdfs://ns1/data/", "s3://b/x")
    )
    stores = server._dataset_stores(wanted)
    for url in ("hdfs:///data/digits", "hdfs://ns1/data", "s3://b/x/1", "hdfs://ns1/Projects/demo/Datasets/d"):
        assert datasets.readable_url(url, stores) == url
    for url in ("hdfs:///database", "hdfs://other/data/digits", "s3://b/xy", "hdfs:///Projects/demo/Serving/a.private"):
        with pytest.raises(PermissionRefused, match="--datasets"):
            datasets.readable_url(url, stores)
    for wrong in ("/data", "https://host/data"):
        with pytest.raises(ArgumentError, match="--datasets"):
            server._dataset_stores(server.ServerSettings(tmp_path, project_url="file:///p", datasets=(wrong,)))
