"""``hopsml runs tensorboard RUN``: a real TensorBoard over a run's events, and the copy that it makes of remote ones."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from hopsml.notebook import tensorboard_server
from hopsml.notebook.tensorboard_server import copy_grown_files
from hopsml.storage.filesystem import for_url
from hopsml.training import evaluation
from tests.helpers import clock
from tests.helpers.clock import END_S
from tests.helpers.cluster.workloads import wait_until

ROOT = Path(__file__).parents[3]


@pytest.fixture
def events(tmp_path: Path) -> Path:
    """Return a folder with an event file."""
    folder = tmp_path / "made"
    folder.mkdir()
    content = evaluation.encode_scalar_events({"loss": 0.5}, 1, time.time())
    (folder / f"events.out.tfevents.{time.time():.0f}.here").write_bytes(content)
    return folder


@pytest.mark.fast
def test_only_changed_event_files_are_fetched_again(tmp_path: Path) -> None:
    source, copy = tmp_path / "events", tmp_path / "copy"
    (source / "train").mkdir(parents=True)
    copy.mkdir()
    events = source / "train" / "events.out.tfevents.1"
    events.write_bytes(b"one")
    assert copy_grown_files(f"file://{source}", copy) == 1
    assert copy_grown_files(f"file://{source}", copy) == 0
    copied = copy / "train" / events.name
    opened = copied.stat().st_ino  # TensorBoard keeps it open, and reads on where it ended
    events.write_bytes(b"one two")
    assert copy_grown_files(f"file://{source}", copy) == 1
    assert copied.read_bytes() == b"one two" and copied.stat().st_ino == opened
    events.write_bytes(b"new")
    assert copy_grown_files(f"file://{source}", copy) == 1 and copied.read_bytes() == b"new"
    events.write_bytes(b"one two")
    copy_grown_files(f"file://{source}", copy)
    assert for_url(f"file://{source}").status(f"file://{events}").length == 7


@pytest.mark.fast
def test_store_outage_does_not_end_tensorboard_and_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tensorboard_server, "REFRESH_S", 0.01)
    events, away = tmp_path / "events", tmp_path / "away"
    events.mkdir()
    (events / "events.out.tfevents.1").write_bytes(b"one")
    copy = tensorboard_server.EventCopy(f"file://{events}", tmp_path / "copy")
    events.rename(away)
    for _ in range(1000):
        copy.refresh()
    away.rename(events)
    (events / "events.out.tfevents.1").write_bytes(b"one two")
    wait_until(
        lambda: copy.refresh() or caplog.messages[-1] == "the shown events are updated again", "the end of the outage"
    )
    assert len(caplog.messages) == 2 and "cannot be updated" in caplog.messages[0]
    assert (copy.folder / "events.out.tfevents.1").read_bytes() == b"one two"


@pytest.mark.tensorflow
def test_tensorboard_command_shows_events_until_ctrl_c(tmp_path: Path, events: Path) -> None:
    run = tmp_path / "Experiments" / "app_1"
    shutil.copytree(events, run / "events" / "train")
    (run / "run.json").write_text("{}")
    command = [
        sys.executable,
        "-c",
        "from hopsml.cli import main; main()",
        "runs",
        "tensorboard",
        str(run),
        "--port",
        "0",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE) as page:
        try:
            assert "train" in runs_of(announced(page), page)
        finally:
            page.send_signal(signal.SIGINT)
            page.wait(END_S)
        assert page.returncode == 0


@pytest.mark.tensorflow
@pytest.mark.variant  # of the command above, and of what is fetched, below
def test_visualize_shows_a_log_directory_until_ctrl_c(tmp_path: Path, events: Path) -> None:
    """A run with nested runs, as a search has: their events are shown."""
    run = tmp_path / "Experiments" / "app_1"
    for trial in ("a=1", "a=2"):
        shutil.copytree(events, run / trial / "events")
    (run / "run.json").write_text('{"search": {}}')
    command = [sys.executable, "-c", f"import hopsml; hopsml.tensorboard.visualize({str(run)!r})"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE) as page:
        try:
            assert "a=1/events" in runs_of(announced(page), page)
        finally:
            page.send_signal(signal.SIGINT)
            page.wait(END_S)
        assert page.returncode == 0


@pytest.mark.fast
def test_only_event_files_of_nested_runs_are_fetched(tmp_path: Path) -> None:
    run, copy = tmp_path / "run", tmp_path / "copy"
    for name in ("a=1/events/events.out.tfevents.1", "a=1/checkpoints/step-000000001/weights", "run.json"):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text("x")
    assert copy_grown_files(f"file://{run}", copy) == 1
    assert (copy / "a=1/events/events.out.tfevents.1").exists()


def announced(page: subprocess.Popen[bytes]) -> int:
    """Return the port it prints; it chooses a free one, since a port chosen earlier could be taken."""
    assert page.stdout is not None
    for line in page.stdout:
        if port := line.decode().partition("http://127.0.0.1:")[2].partition("/")[0]:
            return int(port)
    raise AssertionError(f"it named no address and ended with exit status {page.wait(END_S)}")


def runs_of(port: int, page: subprocess.Popen[bytes], timeout_s: float = 120) -> list[str]:
    """Return the runs that TensorBoard lists once it has read the events."""
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
