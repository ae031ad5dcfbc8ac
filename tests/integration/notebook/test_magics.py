"""Tests of ``%load_ext hopsml`` in a real kernel: runs, logs, and a TensorBoard that ends with it."""

from __future__ import annotations

import json
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import psutil
import pytest

from hopsml.errors import HopsmlError
from hopsml.notebook import magics, tensorboard
from tests.helpers.cluster.workloads import living, wait_until
from tests.helpers.service.project import ProjectOnDisk
from tests.integration.notebook.kernels import Cell, Kernel, environment, kernel, temporary_folder

TRAIN = """
def train(accuracy, with_events):
    import hopsml
    print("rank", workloads.my_rank(), "says <b>hello</b>")
    if with_events:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
        writer = EventFileWriter(hopsml.tensorboard.logdir() + "/train")
        writer.add_event(Event(step=1, summary=Summary(value=[Summary.Value(tag="loss", simple_value=0.5)])))
        writer.close()
    return {"accuracy": accuracy}
first, second = (
    experiment.collective_all_reduce(
        train, args={"accuracy": a, "with_events": a > 0.5}, name=f"with {a}", num_workers=n, preload=[]
    )
    for a, n in ((0.25, 2), (0.75, 1))
)
print(first.run_id, second.run_id)
"""


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    with environment(tmp_path_factory.mktemp("magics")), kernel() as started:
        started.run(
            "%load_ext hopsml\nimport hopsml\nfrom hopsml import experiment\nfrom tests.helpers.cluster import workloads"
        )
        yield started


@pytest.fixture(scope="module")
def ids(notebook: Kernel) -> list[str]:
    cell = notebook.run(TRAIN)
    assert not cell.error, cell
    return cell.text.split()


@pytest.mark.tensorflow
def test_runs_magic_lists_the_newest_run_first(notebook: Kernel, ids: list[str]) -> None:
    (table,) = notebook.run("%runs").results
    lines = table["text/plain"].splitlines()
    assert lines[0].split() == ["run", "name", "state", "workers", "started", "duration", "result"]
    assert [line.split()[0] for line in lines[1:]] == ids[::-1] and "accuracy=0.75" in lines[1]
    assert "<table" in table["text/html"] and "with 0.75" in table["text/html"]
    assert len(notebook.run("%runs --last 1").results[0]["text/plain"].splitlines()) == 2
    assert notebook.run("listed = %runs\nprint(len(listed.runs))").text == "2\n"


@pytest.mark.tensorflow
def test_runs_magic_reports_that_there_are_no_runs(notebook: Kernel, tmp_path: Path) -> None:
    (answer,) = notebook.run(f"%runs --project file://{tmp_path}").results
    assert answer == {"text/plain": f"no runs in file://{tmp_path}"}


@pytest.mark.tensorflow
def test_logs_magic_prints_a_rank_or_the_newest_run(notebook: Kernel, ids: list[str]) -> None:
    assert notebook.run(f"%logs {ids[0]} --rank 1").text == "rank 1 says <b>hello</b>\n"
    assert notebook.run("%logs").text.startswith("rank 0 says <b>hello</b>\n")


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%logs nothing_1", "UsageError: run 'nothing_1': file://"),
        ("%logs --rank 9", "UsageError: "),
        ("%logs --rank first", "UsageError: argument --rank: invalid int value: 'first'"),
        ("%tensorboard_run nothing_1", "UsageError: run 'nothing_1': file://"),
    ],
)
def test_magic_with_a_wrong_argument_prints_one_sentence(
    notebook: Kernel, ids: list[str], line: str, message: str
) -> None:
    cell = notebook.run(line)
    assert cell.text.startswith(message) and "Traceback" not in cell.text, cell.text


def address(cell: Cell) -> str:
    ((shown,),) = cell.displays.values()
    found = re.search(r"http://127\.0\.0\.1:\d+/", shown["text/plain"])
    assert found, (shown, cell.text)
    return found.group()


def listed_runs(url: str) -> list[str]:
    """Return the runs that the page lists once it has read the events."""

    def ask() -> list[str]:
        with urllib.request.urlopen(f"{url}data/runs", timeout=10) as answer:
            return list(json.load(answer))

    return list(wait_until(ask, "events on the page"))


@pytest.mark.tensorflow
@pytest.mark.variant  # of unit/cli/test_tensorboard.py
def test_tensorboard_shows_the_events_of_a_run_until_the_kernel_ends(notebook: Kernel, ids: list[str]) -> None:
    with kernel() as own:  # of the same project
        own.run("%load_ext hopsml")
        page = address(own.run("%tensorboard_run"))
        assert listed_runs(page) == ["train"]
        assert address(own.run(f"%tensorboard_run {ids[1]}")) == page  # the same run: the same page
        below = psutil.Process(own.pid).children(recursive=True)
        servers = [process.pid for process in below if "tensorboard" in " ".join(process.cmdline())]
        assert len(servers) >= 2  # the one that watches, and TensorBoard
        own.kill()
        wait_until(lambda: not living(servers), "TensorBoard's end")
    assert not list(temporary_folder().glob("hopsml-tensorboard-*"))


def is_refused(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=10).close()
    except urllib.error.HTTPError as error:
        return error.code == 401
    except OSError:
        return True
    return False


@pytest.mark.local
def test_project_page_is_started_once_and_ends_with_the_kernel(tmp_path: Path) -> None:
    project = ProjectOnDisk(tmp_path / "digits")
    project.run("app_1")
    (tmp_path / "own").mkdir()
    with environment(tmp_path / "own"), kernel() as own:
        own.run("%load_ext hopsml")
        cell = own.run(f"%hopsml_ui --project {project.url}")
        ((shown,),) = cell.displays.values()
        page = re.search(r"http://127\.0\.0\.1:\d+/\?token=[\w-]+", shown["text/plain"])
        assert page and "Runs of digits" in shown["text/html"], (shown, cell.text)
        known = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        known.open(page[0], timeout=10).close()
        with known.open(page[0].partition("?")[0] + "api/runs", timeout=10) as answer:
            assert [row["id"] for row in json.load(answer)["rows"]] == ["app_1"]
        assert is_refused(page[0].partition("?")[0])
        assert page[0] in str(own.run(f"%hopsml_ui --project {project.url}").displays)
        below = psutil.Process(own.pid).children(recursive=True)
        (server,) = [process.pid for process in below if "--no-browser" in process.cmdline()]
        own.kill()
        wait_until(lambda: not living([server]), "the page's end")


@pytest.mark.local
def test_page_that_does_not_start_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(magics, "_START", "import sys; sys.exit('the port is taken')")
    with pytest.raises(HopsmlError, match="the port is taken"):
        magics.open_page(f"file://{tmp_path}/file")
    assert not magics._pages


# -- where a browser finds it


@pytest.mark.fast
@pytest.mark.parametrize(
    ("environment_", "base_url", "has_proxy", "path"),
    [
        ({}, "", False, ""),
        ({}, "", True, "/proxy/6006/"),
        ({}, "/lab-of-mine/", True, "/lab-of-mine/proxy/6006/"),
        ({"JUPYTERHUB_SERVICE_PREFIX": "/user/ada/"}, "", True, "/user/ada/proxy/6006/"),
        ({"JUPYTERHUB_SERVICE_PREFIX": "/user/ada/"}, "", False, ""),
        ({"TENSORBOARD_PROXY_URL": "/at/%PORT%/"}, "/x/", False, "/at/6006/"),
    ],
)
def test_page_path_is_relative_to_the_notebook_server(
    environment_: dict[str, str], base_url: str, has_proxy: bool, path: str
) -> None:
    assert tensorboard.page_path(6006, environment_, base_url, has_proxy) == path


@pytest.mark.fast
def test_server_note_is_read_from_the_runtime_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "jpserver-7.json").write_text(json.dumps({"base_url": "/lab/", "port": 8888}))
    assert tensorboard.server_record({"JPY_PARENT_PID": "7"})["base_url"] == "/lab/"
    assert tensorboard.server_record({"JPY_PARENT_PID": "8"}) == tensorboard.server_record({}) == {}


class ProxyServer(BaseHTTPRequestHandler):
    """Notebook server with a token, whose proxy serves one port."""

    requested: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.requested.append(self.path)
        known = {"/lab/proxy/6006/": 200, "/lab/proxy/6007/": 404}.get(self.path, 500)
        self.send_response(known if self.headers.get("Authorization") == "token abc" else 403)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing on stderr."""


@pytest.mark.fast
def test_notebook_server_is_queried_for_its_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # unused: the token must not be sent there
    with HTTPServer(("127.0.0.1", 0), ProxyServer) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        note = {"url": f"http://127.0.0.1:{server.server_port}/lab/", "token": "abc"}
        try:
            assert tensorboard.server_shows("/lab/proxy/6006/", note) is True
            assert tensorboard.server_shows("/lab/proxy/6007/", note) is False
            assert tensorboard.server_shows("/lab/proxy/6008/", note) is None
            assert tensorboard.server_shows("/lab/proxy/6006/", {**note, "token": "wrong"}) is None
            requested = len(ProxyServer.requested)
            assert tensorboard.server_shows("/lab/proxy/6006/", {**note, "token": ""}) is None
            assert tensorboard.server_shows("/lab/proxy/6006/", {}) is None and len(ProxyServer.requested) == requested
        finally:
            server.shutdown()
            thread.join()
    assert tensorboard.server_shows("/lab/proxy/6006/", note) is None  # the server has ended


@pytest.mark.fast
def test_page_is_embedded_with_a_proxy_and_linked_without_one() -> None:
    page = tensorboard.Page("app_<1>", 6006, None)  # type: ignore[arg-type]
    shown = tensorboard.bundle(page, "/proxy/6006/")
    assert 'src="/proxy/6006/"' in shown["text/html"] and "app_&lt;1&gt;" in shown["text/html"]
    assert "http" not in shown["text/html"]  # a browser on another machine could not follow it
    own = tensorboard.Page("app", 6006, None, "?token=a&b")  # type: ignore[arg-type]
    assert 'src="/proxy/6006/?token=a&amp;b"' in tensorboard.bundle(own, "/proxy/6006/")["text/html"]
    shown = tensorboard.bundle(page, "")
    assert '<a href="http://127.0.0.1:6006/"' in shown["text/html"] and "iframe" not in shown["text/html"]
    assert "app_&lt;1&gt;" in shown["text/html"] and "[notebook]" in shown["text/plain"]


@pytest.mark.fast
def test_empty_log_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOPSML_PROJECT_URL", f"file://{tmp_path}")
    logs = tmp_path / "Experiments" / "app_1" / "logs"
    logs.mkdir(parents=True)
    (logs.parent / "run.json").write_text('{"verb": "torch", "workers": 2}')
    (logs.parent / "status.json").write_text('{"state": "FAILED"}')
    (logs / "g0-rank0.log").write_text("hello\n")
    (logs / "g0-rank1.log").touch()
    magics.logs("app_1", rank=1)
    assert capsys.readouterr().out == (
        f"rank 1 of run app_1 has printed nothing: file://{logs}/g0-rank1.log is empty (state of the run: FAILED); "
        "output of other ranks: 0\n"
    )
    magics.logs("app_1")
    assert capsys.readouterr().out == "hello\n"
