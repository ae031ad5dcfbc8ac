"""``hopsml tensorboard RUN``: a real TensorBoard over a run's events, and the copy that it makes of remote ones."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from hopsml.notebook.tensorboard_server import fetch
from hopsml.storage.filesystem import for_url
from tests import clock

ROOT = Path(__file__).parents[2]
WRITE = """
import sys, tensorflow as tf
with tf.summary.create_file_writer(sys.argv[1]).as_default():
    tf.summary.scalar("loss", 0.5, step=1)
"""


@pytest.mark.fast
def test_events_that_have_grown_are_fetched_again_and_others_are_not(tmp_path: Path) -> None:
    source, copy = tmp_path / "events", tmp_path / "copy"
    (source / "train").mkdir(parents=True)
    copy.mkdir()
    events = source / "train" / "events.out.tfevents.1"
    events.write_bytes(b"one")
    assert fetch(f"file://{source}", copy) == 1
    assert fetch(f"file://{source}", copy) == 0
    events.write_bytes(b"one two")
    assert fetch(f"file://{source}", copy) == 1
    assert (copy / "train" / events.name).read_bytes() == b"one two"
    assert for_url(f"file://{source}").status(f"file://{events}").length == 7


@pytest.mark.tensorflow
@pytest.mark.timeout(200)
def test_the_page_shows_the_runs_events_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    run = tmp_path / "Experiments" / "app_1"
    run.mkdir(parents=True)
    (run / "run.json").write_text("{}")
    subprocess.run([sys.executable, "-c", WRITE, str(run / "events" / "train")], check=True, capture_output=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-c",
        "from hopsml.cli import main; main()",
        "tensorboard",
        str(run),
        "--port",
        str(port),
    ]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as page:
        try:
            assert "train" in runs_of(port, page)
        finally:
            page.send_signal(signal.SIGINT)
            page.wait(30)


def runs_of(port: int, page: subprocess.Popen[bytes], timeout_s: float = 120) -> list[str]:
    """What TensorBoard lists, once it answers and has read the events."""
    deadline = clock.awake() + timeout_s
    while clock.awake() < deadline and page.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/data/runs", timeout=5) as answer:
                if found := json.load(answer):
                    return list(found)
        except OSError:
            pass
        time.sleep(0.2)
    raise AssertionError(f"no runs within {timeout_s} s (exit status {page.poll()})")
