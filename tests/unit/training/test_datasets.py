"""Tests of data sets that are fetched once for each node, from HTTP servers and other stores, or passed on."""

from __future__ import annotations

import fcntl
import functools
import http.server
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopsml.errors import ArgumentError, StorageError
from hopsml.storage.filesystem import for_url
from hopsml.training import datasets
from hopsml.training.datasets import DatasetSource
from tests.helpers.clock import END_S

pytestmark = pytest.mark.fast


class Files(http.server.SimpleHTTPRequestHandler):
    """Handler that serves the files of a folder and records the requests."""

    requests: list[str]
    truncates = False
    answer: bytes | None = None  # sent for each request in place of a file, whatever it is

    def do_HEAD(self) -> None:
        if self.answer is None:
            return super().do_HEAD()
        self.wfile.write(self.answer)
        self.close_connection = True
        return None

    def do_GET(self) -> None:
        self.requests.append(f"GET {self.path}")
        if self.answer is not None:
            return self.do_HEAD()
        if not self.truncates:
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Length", "100")
        self.end_headers()
        self.wfile.write(b"too little")
        self.close_connection = True
        return None

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Use a cache of this test's, and release its copies at the end."""
    monkeypatch.setenv("HOPSML_DATA_CACHE", str(tmp_path / "cache"))
    datasets.fetch.cache_clear()
    yield tmp_path / "cache" / "datasets"
    release()


def release() -> None:
    """Behave as if this process had ended."""
    while datasets._held:
        os.close(datasets._held.pop())
    datasets.fetch.cache_clear()


@pytest.fixture
def web(tmp_path: Path) -> Iterator[tuple[str, Path, type[Files]]]:
    """Yield URL and folder of an HTTP server, and its handler."""
    folder = tmp_path / "web"
    folder.mkdir()
    handler = type("Recording", (Files,), {"requests": []})
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), lambda *arguments: handler(*arguments, directory=str(folder))
    )
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", folder, handler
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("url", "fetch", "is_copied", "location"),
    [
        ("hdfs:///data/digits", "auto", False, "hdfs:///data/digits"),
        ("/data/digits", "auto", False, "/data/digits"),
        ("file:///data/digits", "auto", False, "/data/digits"),
        ("s3://bucket/digits", "pass", False, "s3://bucket/digits"),
        ("s3://bucket/digits", "auto", True, None),
        ("https://host/digits.csv", "auto", True, None),
        ("hdfs:///data/digits", "copy", True, None),
    ],
)
def test_location_is_passed_on_unless_it_is_copied(url: str, fetch: str, is_copied: bool, location: str | None) -> None:
    source = DatasetSource("train-set", url, fetch)  # type: ignore[arg-type]
    expected = {} if location is None else {"HOPSML_DATASET_TRAIN_SET": location}
    assert (source.is_copied, datasets.passed_variables([source])) == (is_copied, expected)


def test_file_is_fetched_once_until_it_changes(web: tuple[str, Path, type[Files]]) -> None:
    url, folder, handler = web
    (folder / "digits.csv").write_text("1,2\n")
    source = DatasetSource("digits", f"{url}/digits.csv")
    found: list[str] = []
    for _ in range(2):
        datasets.fetch_first(lambda: found.append(os.environ["HOPSML_DATASET_DIGITS"]), [source])()
        datasets.fetch.cache_clear()  # as another process
    assert len(set(found)) == 1 and Path(found[0]).read_text() == "1,2\n" and Path(found[0]).name == "digits.csv"
    assert handler.requests == ["GET /digits.csv"]
    (folder / "digits.csv").write_text("1,2,3\n")
    assert datasets.fetch(source).read_text() == "1,2,3\n" and Path(found[0]).read_text() == "1,2\n"
    del os.environ["HOPSML_DATASET_DIGITS"]


def test_folder_of_another_store_is_copied_with_its_files(tmp_path: Path) -> None:
    for name in ("a.csv", "deep/b.csv"):
        for_url(f"file://{tmp_path}").write_bytes(f"file://{tmp_path}/data/{name}", name.encode())
    copy = datasets.fetch(DatasetSource("all", f"file://{tmp_path}/data", "copy"))
    assert {str(path.relative_to(copy)) for path in copy.rglob("*.csv")} == {"a.csv", "deep/b.csv"}
    assert (copy / "deep" / "b.csv").read_text() == "deep/b.csv" and copy.name == "data"
    assert not (copy / "a.csv").stat().st_mode & 0o222, "a process must not change what others read"


@pytest.mark.parametrize("truncates", [True, False])
def test_data_that_cannot_be_fetched_is_named_and_leaves_nothing(
    web: tuple[str, Path, type[Files]], cache: Path, truncates: bool
) -> None:
    url, folder, handler = web
    handler.truncates = truncates
    if truncates:
        (folder / "digits.csv").touch()
    with pytest.raises(StorageError, match=f"data set digits: {url}/digits.csv cannot be fetched: .*") as refused:
        datasets.fetch(DatasetSource("digits", f"{url}/digits.csv"))
    assert ("ended after 10 of 100 bytes" if truncates else "no such file") in str(refused.value)
    assert [path.suffix for path in cache.iterdir()] == ([".lock"] if truncates else [])


def test_copies_that_no_process_uses_make_room(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = []
    for name in ("old", "new", "next"):
        (tmp_path / name).write_bytes(bytes(400))
        sources.append(DatasetSource(name, f"file://{tmp_path}/{name}", "copy"))
    monkeypatch.setenv("HOPSML_DATA_CACHE_BYTES", "1000")
    old = datasets.fetch(sources[0])
    os.utime(old.parent, (0, 0))
    release()
    new = datasets.fetch(sources[1])
    os.utime(new.parent, (1, 1))
    datasets.fetch(sources[2])
    assert not old.exists() and new.exists()
    fourth = tmp_path / "fourth"
    fourth.write_bytes(bytes(400))
    assert datasets.fetch(DatasetSource("fourth", str(fourth), "copy")).exists() and new.exists(), "it is in use"
    release()
    fourth.write_bytes(bytes(1001))
    with pytest.raises(ArgumentError, match="data set large has 1001 bytes, and a node's cache at most 1000"):
        datasets.fetch(DatasetSource("large", str(fourth), "copy"))
    assert new.exists(), "nothing is deleted for what has no room"


def test_processes_that_start_together_fetch_once(web: tuple[str, Path, type[Files]], cache: Path) -> None:
    url, folder, handler = web
    (folder / "digits.csv").write_bytes(bytes(1 << 20))
    code = (
        "from hopsml.training.datasets import *\n"
        f"print(fetch(DatasetSource('digits', '{url}/digits.csv')).stat().st_size)"
    )
    started = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    printed = [one.communicate(timeout=END_S)[0].splitlines() for one in started]
    assert [lines[-1] for lines in printed] == [str(1 << 20)] * 3
    assert handler.requests == ["GET /digits.csv"] and sum(len(lines) for lines in printed) == 4


ENDLESS = b"HTTP/1.0 200 OK\r\n\r\n" + bytes(5000)


@pytest.mark.parametrize(
    "head", ["", "Content-Length: 10\r\n", "Content-Length: -1\r\n", f"Content-Length: {'9' * 5000}\r\n"]
)
def test_length_that_a_server_announces_does_not_raise_the_bound(
    web: tuple[str, Path, type[Files]], cache: Path, monkeypatch: pytest.MonkeyPatch, head: str
) -> None:
    url, _, handler = web
    monkeypatch.setenv("HOPSML_DATA_CACHE_BYTES", "1000")
    handler.do_HEAD = lambda self: self.wfile.write(f"HTTP/1.0 200 OK\r\n{head}\r\n".encode())  # type: ignore[method-assign]
    handler.do_GET = lambda self: self.wfile.write(ENDLESS)  # type: ignore[method-assign]
    with pytest.raises(ArgumentError, match=r"data set digits has [0-9]+ bytes, and a node's cache at most 1000"):
        datasets.fetch(DatasetSource("digits", f"{url}/digits.csv"))
    assert [path.suffix for path in cache.iterdir()] == [".lock"]


def test_copy_whose_length_was_unknown_makes_room_as_well(
    web: tuple[str, Path, type[Files]], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, _, handler = web
    monkeypatch.setenv("HOPSML_DATA_CACHE_BYTES", "1000")
    handler.answer = b"HTTP/1.0 200 OK\r\n\r\n" + bytes(600)
    old = datasets.fetch(DatasetSource("old", f"{url}/old"))
    release()
    assert datasets.fetch(DatasetSource("new", f"{url}/new")).exists() and not old.exists()


@pytest.mark.parametrize(
    "answer",
    [
        b"no HTTP at all\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nabc",
        b"HTTP/1.0 302 Found\r\nLocation: http://[/\r\n\r\n",
        b"HTTP/1.0 302 Found\r\nLocation: file:///etc/passwd\r\n\r\n",
        b"HTTP/1.0 302 Found\r\nLocation: ftp://127.0.0.1:1/x\r\n\r\n",
    ],
)
def test_invalid_answer_is_an_error_that_names_the_data_set(web: tuple[str, Path, type[Files]], answer: bytes) -> None:
    url, _, handler = web
    handler.answer = answer
    with pytest.raises(StorageError, match=r"data set digits: http://.* cannot be fetched: ") as refused:
        datasets.fetch(DatasetSource("digits", f"{url}/digits.csv"))
    assert b"ftp:" not in answer or "which is not HTTP" in str(refused.value), "no other protocol is used"


@pytest.mark.parametrize("url", ["http://127.0.0.1:x/a", "http://127.0.0.1:1/a b", "http://127.0.0.1:1/\u00e4"])
def test_invalid_url_is_an_error_that_names_the_data_set(url: str) -> None:
    with pytest.raises(StorageError, match=r"data set digits: .* cannot be fetched: "):
        datasets.fetch(DatasetSource("digits", url))


def test_redirect_from_https_to_http_is_not_followed() -> None:
    request = urllib.request.Request("https://host/a", method="HEAD")
    follow = functools.partial(datasets._Redirects().redirect_request, request, None, 302, "Found", {})
    assert follow("https://other/a").full_url == "https://other/a"
    with pytest.raises(StorageError, match="https://host/a leads to http://other/a, which is not HTTPS"):
        follow("http://other/a")


def test_signature_of_a_url_is_not_printed(
    web: tuple[str, Path, type[Files]], capfd: pytest.CaptureFixture[str]
) -> None:
    url, folder, _ = web
    (folder / "digits.csv").touch()
    datasets.fetch(DatasetSource("digits", f"{url}/digits.csv?X-Amz-Signature=0a1b2c3d4e5f"))
    printed = capfd.readouterr().out
    assert "fetched" in printed and "0a1b2c3d4e5f" not in printed


def test_names_of_a_url_do_not_lead_out_of_its_copy(cache: Path, tmp_path: Path) -> None:
    for name in ("..?x", ".?x"):
        file = tmp_path / "data" / name / "planted" / "file"
        file.parent.mkdir(parents=True)
        file.touch()
        copy = datasets.fetch(DatasetSource("digits", f"file://{tmp_path}/data/{name}", "copy"))
        assert (copy / "planted" / "file").exists() and copy.name == "data" and copy.parent.parent == cache
    assert not (cache / "planted").exists()


def test_url_without_a_file_name_is_one_copy_under_each_name(web: tuple[str, Path, type[Files]]) -> None:
    url, folder, _ = web
    (folder / "index.html").write_text("data")
    found = {datasets.fetch(DatasetSource(name, f"{url}/")) for name in ("one", "other")}
    assert len(found) == 1 and found.pop().read_text() == "data"


def test_incomplete_copies_of_killed_processes_are_deleted(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("old", "new"):
        (tmp_path / name).write_bytes(bytes(400))
    monkeypatch.setenv("HOPSML_DATA_CACHE_BYTES", "500")
    old = datasets.fetch(DatasetSource("old", f"file://{tmp_path}/old", "copy"))
    release()
    for key in (old.parent.name, "0" * 32):  # killed while it deleted a copy, and while it fetched one
        (cache / f".tmp-{key}" / "data").mkdir(parents=True)
    held = os.open(cache / f"{'1' * 32}.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_EX)
    fetched_now = cache / f".tmp-{'1' * 32}"
    fetched_now.mkdir()
    new = datasets.fetch(DatasetSource("new", f"file://{tmp_path}/new", "copy"))
    os.close(held)
    assert {path for path in cache.iterdir() if path.is_dir()} == {new.parent, fetched_now}
