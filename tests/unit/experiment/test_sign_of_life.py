"""Tests of the detection of a live driver, and that only one other driver takes over the run."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hopsml.cluster.driver.run_state import Change, RunState
from hopsml.errors import ArgumentError
from hopsml.experiment import takeover
from hopsml.experiment.takeover import SignOfLife, driver_lives
from hopsml.storage import filesystem
from hopsml.storage.run_dir import RunDir, create_run_dir
from hopsml.tracking import provenance
from tests.helpers.cluster.workloads import wait_until

pytestmark = pytest.mark.fast

ELSEWHERE = {"pid": 1, "pid_namespace": "of another machine", "process_started": 1}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover, "BEAT_S", 0.05)
    monkeypatch.setattr(takeover, "WATCH_S", 1.0)
    monkeypatch.setattr(takeover, "LOOK_S", 0.02)


def create_run_of_driver(folder: Path, who: dict[str, Any]) -> RunDir:
    return create_run_dir(f"file://{folder}", "app", {"driver_process": who})


@contextmanager
def sending_heartbeats(directory: RunDir, taken: list[str] | None = None) -> Iterator[RunState]:
    state = RunState(directory.run_id, 1)
    SignOfLife(directory, state, (taken if taken is not None else []).append).start()
    yield state
    state.conclude(None, b"")
    name = f"hopsml-driver-of-{directory.run_id}"
    wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name == name], "the end of the signs")


def test_remote_driver_is_alive_while_it_sends_heartbeats(tmp_path: Path) -> None:
    directory = create_run_of_driver(tmp_path, ELSEWHERE)
    with sending_heartbeats(directory):
        assert driver_lives(directory)
    assert directory.read_json(directory.driver_json)["process"] == provenance.process_identity()
    assert not driver_lives(directory)


def test_driver_heartbeats_contain_the_progress_of_the_chief(tmp_path: Path) -> None:
    directory = create_run_of_driver(tmp_path, ELSEWHERE)
    with sending_heartbeats(directory) as state:
        wait_until(lambda: filesystem.exists(directory.driver_json), "a sign")
        assert "progress" not in directory.read_json(directory.driver_json)
        state.publish(Change("progress", 1, "step", step=7, total=9))
        state.publish(Change("progress", 0, "epoch", step=3, total=40))
        wait_until(lambda: "progress" in directory.read_json(directory.driver_json), "a sign with the progress")
    assert directory.read_json(directory.driver_json)["progress"] == {"done": 3, "total": 40, "unit": "epoch"}


def test_driver_silent_for_a_long_time_is_considered_dead_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takeover, "WATCH_S", 600.0)
    monkeypatch.setattr(takeover, "OLD_S", -1.0)
    started = time.monotonic()
    assert not driver_lives(create_run_of_driver(tmp_path, ELSEWHERE))
    assert time.monotonic() - started < 60


@pytest.mark.parametrize("ahead_s", [86_400.0, -86_400.0])
def test_clock_offset_of_a_day_does_not_affect_driver_liveness(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead_s: float
) -> None:
    directory, right = create_run_of_driver(tmp_path, ELSEWHERE), time.time
    monkeypatch.setattr(time, "time", lambda: right() + ahead_s)
    with sending_heartbeats(directory):
        assert driver_lives(directory)
    assert not [path for path in (tmp_path / "Experiments" / directory.run_id).iterdir() if ".tmp-" in path.name]
    for path in (tmp_path / "Experiments" / directory.run_id).iterdir():
        os.utime(path, (right() - 700, right() - 700))
    monkeypatch.setattr(takeover, "WATCH_S", 600.0)
    assert not driver_lives(directory)


def test_driver_with_a_longer_lease_is_awaited_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(takeover, "WATCH_S", 0.0)
    directory = create_run_of_driver(tmp_path, ELSEWHERE)
    sign = {"process": ELSEWHERE, "beat": 1, "lease_s": 300.0}
    directory.write_json(directory.driver_json, sign)
    with ThreadPoolExecutor(1) as pool, caplog.at_level(logging.WARNING):
        lives = pool.submit(driver_lives, directory)
        wait_until(lambda: "waiting 290 s for a heartbeat" in caplog.text, "the wait")
        directory.write_json(directory.driver_json, sign | {"beat": 2})
        assert lives.result()


@pytest.mark.parametrize("lease_s", ["300", True, -1, float("inf"), None, [1]])
def test_malformed_lease_in_a_sign_of_life_is_ignored(tmp_path: Path, lease_s: object) -> None:
    directory = create_run_of_driver(tmp_path, ELSEWHERE)
    directory.write_json(directory.driver_json, {"process": ELSEWHERE, "beat": 1, "lease_s": lease_s})
    assert not driver_lives(directory)


def test_ended_local_driver_process_is_considered_dead_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover, "WATCH_S", 600.0)
    program = "import json; from hopsml.tracking import provenance; print(json.dumps(provenance.process_identity()))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert not driver_lives(create_run_of_driver(tmp_path, json.loads(done.stdout)))


def test_liveness_within_this_process_follows_its_active_runs(tmp_path: Path) -> None:
    directory = create_run_of_driver(tmp_path, provenance.process_identity())
    assert not driver_lives(directory)
    with sending_heartbeats(directory):
        assert driver_lives(directory)
    assert not driver_lives(directory)


def test_only_one_of_several_takeovers_succeeds_and_the_old_driver_is_notified(tmp_path: Path) -> None:
    left, taken = create_run_of_driver(tmp_path, ELSEWHERE), list[str]()
    successors = [create_run_of_driver(tmp_path, provenance.process_identity()) for _ in range(8)]

    def take(successor: RunDir) -> str:
        try:
            takeover.hand_over_run(left.url, successor)
        except ArgumentError as error:
            return str(error)
        return successor.url

    with sending_heartbeats(left, taken), ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(take, successors))
        (winner,) = [answer for answer in answers if answer.startswith("file:")]
        assert answers.count(f"run {left.run_id} was already continued in {winner}; resume that run") == 7
        wait_until(lambda: taken, "the old driver's notice")
    assert set(taken) == {winner} == {left.read_successor()}
    status = left.read_status()
    assert status is not None and (status["state"], status["continued_by"]) == ("LOST", winner)
    for successor in successors:
        status = successor.read_status()
        assert (status is None) == (successor.url == winner)
        assert status is None or (status["state"], "continued in" in status["error"]) == ("CANCELLED", True)


def test_driver_deletes_logs_of_old_generations(tmp_path: Path) -> None:
    directory = create_run_of_driver(tmp_path, ELSEWHERE)
    logs = Path(directory.logs.removeprefix("file://"))
    logs.mkdir(exist_ok=True)
    for generation in range(80):
        (logs / f"g{generation}-rank0.log").touch()
    with sending_heartbeats(directory) as state:
        state.begin_generation(79, 1)
        wait_until(lambda: len(list(logs.iterdir())) == 51, "fewer logs")
        assert (logs / "g0-rank0.log").exists() and (logs / "g30-rank0.log").exists()
