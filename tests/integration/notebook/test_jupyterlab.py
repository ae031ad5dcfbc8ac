"""Tests of ``%tensorboard_run`` and ``%hopsml_ui`` in a real JupyterLab with ``hopsml[notebook]``."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hopsml.storage.run_dir import RunDir
from tests.helpers.clock import END_S
from tests.helpers.cluster.workloads import wait_until
from tests.helpers.leaks import not_of_this_test
from tests.helpers.service.project import ProjectOnDisk
from tests.integration.notebook.kernels import ROOT, Cell, Kernel, environment
from tests.integration.service.conftest import browser

__all__ = ["browser"]  # the fixture

pytestmark = pytest.mark.tensorflow

BASE, TOKEN = "/team/", "secret-of-the-test"
SHOW = "path => document.body.append(Object.assign(document.createElement('iframe'), {id: 'cell', src: path}))"
RUN = "app_1"


@dataclass(frozen=True)
class Lab:
    """Running JupyterLab on loopback."""

    url: str  # without BASE

    def ask(self, path: str, method: str = "GET") -> bytes:
        """Return its answer to an authenticated request."""
        request = urllib.request.Request(self.url + path, headers={"Authorization": f"token {TOKEN}"}, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return bytes(answer.read())

    def answers(self) -> bool:
        """Return True once it listens; its server file is written earlier."""
        try:
            return bool(self.ask(f"{BASE}api/status"))
        except OSError:
            return False


@contextmanager
def jupyterlab(runtime: Path) -> Iterator[Lab]:
    """Start a server and end it, with its kernels, after the block."""
    options = {"ip": "127.0.0.1", "port": "0", "base_url": BASE, "root_dir": str(ROOT), "allow_root": "True"}
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", f"--IdentityProvider.token={TOKEN}"]
    process = subprocess.Popen(
        [*command, *(f"--ServerApp.{name}={value}" for name, value in options.items())],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        note = runtime / f"jpserver-{process.pid}.json"
        wait_until(lambda: process.poll() is not None or (note.exists() and note.read_text()), "JupyterLab", 60)
        lab = Lab(f"http://127.0.0.1:{json.loads(note.read_text())['port']}")
        wait_until(lambda: process.poll() is not None or lab.answers(), "JupyterLab's answer", 60)
        yield lab
    finally:
        process.terminate()
        process.wait(END_S)


class LabKernel(Kernel):
    """Kernel started by JupyterLab, as for an opened notebook."""

    def __init__(self, lab: Lab, runtime: Path) -> None:
        from jupyter_client.blocking.client import BlockingKernelClient

        self.cells: dict[str, Cell] = {}
        kernel = json.loads(lab.ask(f"{BASE}api/kernels", "POST"))["id"]
        self.client: Any = BlockingKernelClient(connection_file=str(runtime / f"kernel-{kernel}.json"))
        self.client.load_connection_file()
        self.client.hb_channel.time_to_dead = 60.0  # before it starts: a kernel that is slow to start is not dead
        self.client.start_channels()
        self.client.wait_for_ready(60)


def make_run(project: Path) -> None:
    """Create a run with an event file, written without TensorFlow."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    RunDir(f"file://{project}/Experiments/{RUN}").write_run({"name": "digits", "started": 1.0, "workers": 1})
    folder = project / "Experiments" / RUN / "events" / "train"
    folder.mkdir(parents=True)
    with open(folder / "events.out.tfevents.1.test", "wb") as file:
        writer = RecordWriter(file)
        loss = Summary(value=[Summary.Value(tag="loss", simple_value=0.5)])
        for event in (Event(wall_time=1.0, file_version="brain.Event:2"), Event(wall_time=2.0, step=1, summary=loss)):
            writer.write(event.SerializeToString())


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Lab, LabKernel]]:
    """Yield a project folder, a JupyterLab, and a kernel in it with the magics loaded."""
    with environment(tmp_path) as project:
        for name in ("JUPYTERHUB_SERVICE_PREFIX", "JPY_PARENT_PID"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "jupyter"))
        monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
        runtime = Path(os.environ["JUPYTER_RUNTIME_DIR"])
        with not_of_this_test(), jupyterlab(runtime) as started:
            kernel = LabKernel(started, runtime)
            kernel.run("%load_ext hopsml")
            yield project, started, kernel
            kernel.client.stop_channels()


def framed(cell: Cell) -> str:
    """Return the address of the page in a cell, as its browser sees it."""
    ((shown,),) = cell.displays.values()
    found = re.search(r'<iframe src="([^"]+)"', shown["text/html"])
    assert found and found[1].startswith(f"{BASE}proxy/"), shown
    return html.unescape(found[1])


@pytest.mark.variant  # of test_magics; JupyterLab's choice of a free port is a race with other tests
def test_tensorboard_is_shown_in_the_notebook_through_the_jupyterlab_server(
    lab: tuple[Path, Lab, LabKernel],
) -> None:
    project, server, kernel = lab
    make_run(project)
    path = framed(kernel.run(f"%tensorboard_run {RUN}"))
    assert b"<title>TensorBoard</title>" in server.ask(path)
    assert wait_until(lambda: json.loads(server.ask(f"{path}data/runs")), "the events", 30) == ["train"]


@pytest.mark.variant  # of test_magics and service/test_pages
def test_project_page_is_shown_in_the_notebook_through_the_jupyterlab_server(
    lab: tuple[Path, Lab, LabKernel], browser: Any
) -> None:
    folder, server, kernel = lab
    project = ProjectOnDisk(folder)
    project.run(RUN)
    path = framed(kernel.run("%hopsml_ui"))
    context = browser.new_context()
    seen = context.new_page()
    seen.goto(f"{server.url}{path}")
    assert f"{BASE}login" in seen.url, "whoever has not come in to JupyterLab does not come to the page"
    seen.goto(f"{server.url}{BASE}lab?token={TOKEN}", wait_until="domcontentloaded")
    seen.evaluate(SHOW, path)  # as the cell's output does
    page = seen.frame_locator("#cell")
    page.get_by_text(RUN, exact=True).wait_for()
    project.run("app_2")
    page.get_by_text("app_2", exact=True).wait_for()  # received by an event stream through the proxy
    (frame,) = [frame for frame in seen.frames if "/proxy/" in frame.url]
    assert frame.url.startswith(f"{server.url}{BASE}proxy/") and "token" not in frame.url
    context.close()
