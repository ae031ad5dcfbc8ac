"""Deadlines hold even when nothing ever answers: a socket that accepts and stays silent."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from hopsml.errors import StorageTimeout
from hopsml.storage import deadline
from hopsml.storage.deadline import Steps
from hopsml.storage.filesystem import for_url
from tests import clock

pytestmark = pytest.mark.fast


@pytest.fixture
def silent() -> Iterator[str]:
    """``host:port`` of a listener that never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("scheme", ["hdfs", "webhdfs"])
def test_a_silent_server(scheme: str, silent: str, tmp_path: Path) -> None:
    url = f"{scheme}://{silent}/x"
    (tmp_path / "l").write_bytes(b"x")
    system = for_url(url, timeout_s=0.7)
    before = psutil.Process().children()  # the session has some of its own
    calls = [
        lambda: system.status(url),
        lambda: system.read_bytes(url),
        lambda: system.write_bytes(url, b"x"),
        lambda: system.upload(tmp_path / "l", url),
    ]
    began_s = clock.awake()
    with ThreadPoolExecutor(len(calls)) as pool:
        errors = [future.exception() for future in [pool.submit(call) for call in calls]]
    assert clock.awake() - began_s < 4
    for error in errors:
        assert isinstance(error, StorageTimeout)
        assert isinstance(error, TimeoutError)
        assert error.path == url
        assert "within 0.7 s" in str(error)
    assert psutil.Process().children() == before  # a helper that is stuck is killed at once
    _wait_until(lambda: not any(thread.name.startswith("storage") for thread in threading.enumerate()))


def test_the_environment_sets_the_deadline(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPSML_STORAGE_TIMEOUT_S", "0.6")
    with pytest.raises(StorageTimeout, match=r"within 0.6 s.*accepts connections but does not answer"):
        for_url(f"hdfs://{silent}/x").status(f"hdfs://{silent}/x")


def test_steps_give_results_and_errors_in_one_thread() -> None:
    with Steps("read", "/x", 5.0) as steps:
        first = steps.run(threading.get_ident)
        assert steps.run(threading.get_ident) == first != threading.get_ident()
        with pytest.raises(ZeroDivisionError):
            steps.run(lambda: 1 // 0)
        thread = next(t for t in threading.enumerate() if t.ident == first)
    assert not thread.is_alive()


def test_a_step_that_blocks_is_abandoned_and_the_rest_refused() -> None:
    release = threading.Event()
    with Steps("read", "/x", 0.1) as steps:
        with pytest.raises(StorageTimeout, match="cannot read /x"):
            steps.run(release.wait)
        with pytest.raises(StorageTimeout):
            steps.run(lambda: 1)
    release.set()
    _wait_until(lambda: not any(t.name == "storage read" for t in threading.enumerate()))


@pytest.mark.parametrize("gets_on", [True, False])
def test_a_step_that_gets_on_lives_longer_than_its_deadline(monkeypatch: pytest.MonkeyPatch, gets_on: bool) -> None:
    """By a clock of the test's, at which whoever waits looks again and again meanwhile."""
    now, looked, over, me = [0.0], threading.Event(), threading.Event(), threading.get_ident()

    def monotonic() -> float:
        if threading.get_ident() == me:
            looked.set()
        return now[0]

    def slow() -> str:
        for _ in range(6):
            now[0] += 0.04
            if gets_on:
                steps.touch()
            looked.clear()
            if over.is_set():
                break
            looked.wait(30)
        return "done"

    monkeypatch.setattr(deadline, "time", SimpleNamespace(monotonic=monotonic))
    with Steps("write", "/x", 0.05) as steps:
        if gets_on:
            assert steps.run(slow) == "done"
            return
        with pytest.raises(StorageTimeout):
            steps.run(slow)
        over.set()
        looked.set()
    _wait_until(lambda: not any(thread.name == "storage write" for thread in threading.enumerate()))


def _wait_until(check: object, timeout_s: float = 5.0) -> None:
    deadline_s = clock.awake() + timeout_s
    while not check():  # type: ignore[operator]
        assert clock.awake() < deadline_s
        time.sleep(0.01)
