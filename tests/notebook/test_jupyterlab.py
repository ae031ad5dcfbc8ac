"""``%tensorboard_run`` in a plain JupyterLab, as ``hopsml[notebook]`` brings it: a real server, kernel and page."""

from __future__ import annotations

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
from tests.cluster.workloads import wait_until
from tests.leaks import not_of_this_test
from tests.notebook.kernels import ROOT, Cell, Kernel, environment

pytestmark = pytest.mark.tensorflow

BASE, TOKEN = "/team/", "secret-of-the-test"
RUN = "app_1"


@dataclass(frozen=True)
class Lab:
    """A JupyterLab that serves on loopback."""

    url: str  # without BASE

    def ask(self, path: str, method: str = "GET") -> bytes:
        """What it answers to a browser that is logged in."""
        request = urllib.request.Request(self.url + path, headers={"Authorization": f"token {TOKEN}"}, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return bytes(answer.read())

    def answers(self) -> bool:
        """Whether it listens yet: what it notes of itself comes before."""
        try:
            return bool(self.ask(f"{BASE}api/status"))
        except OSError:
            return False


@contextmanager
def jupyterlab(runtime: Path) -> Iterator[Lab]:
    """The server, ended with the block; its kernels end with it."""
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
        process.wait(30)


class LabKernel(Kernel):
    """A kernel that JupyterLab has started, as for a notebook that is opened in it."""

    def __init__(self, lab: Lab, runtime: Path) -> None:
        from jupyter_client.blocking.client import BlockingKernelClient

        self.cells: dict[str, Cell] = {}
        kernel = json.loads(lab.ask(f"{BASE}api/kernels", "POST"))["id"]
        self.client: Any = BlockingKernelClient(connection_file=str(runtime / f"kernel-{kernel}.json"))
        self.client.load_connection_file()
        self.client.start_channels()
        self.client.wait_for_ready(60)


def make_run(project: Path) -> None:
    """A run with an event file; written without TensorFlow."""
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


@pytest.mark.variant  # of test_magics; JupyterLab's choice of a free port is a race beside other tests
@pytest.mark.timeout(400)
def test_tensorboard_stands_in_the_notebook_and_its_page_is_reached_through_jupyterlabs_own_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with environment(tmp_path) as project:
        for name in ("JUPYTERHUB_SERVICE_PREFIX", "JPY_PARENT_PID"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "jupyter"))
        monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
        make_run(project)
        runtime = Path(os.environ["JUPYTER_RUNTIME_DIR"])
        with not_of_this_test(), jupyterlab(runtime) as lab:
            kernel = LabKernel(lab, runtime)
            kernel.run("%load_ext hopsml")
            cell = kernel.run(f"%tensorboard_run {RUN}")
            kernel.client.stop_channels()
            ((shown,),) = cell.displays.values()
            found = re.search(r'<iframe src="([^"]+)"', shown["text/html"])
            assert found and found[1].startswith(f"{BASE}proxy/"), shown
            assert b"<title>TensorBoard</title>" in lab.ask(found[1])
            assert wait_until(lambda: json.loads(lab.ask(f"{found[1]}data/runs")), "the events", 30) == ["train"]
