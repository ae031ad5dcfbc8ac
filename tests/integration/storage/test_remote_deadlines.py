"""Tests that deadlines hold for calls that are never answered, and that these leave nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from hopsml.errors import ArgumentError, StorageTimeout
from hopsml.storage.filesystem import for_url
from tests.helpers import clock
from tests.integration.storage import http_server

pytestmark = pytest.mark.local


@pytest.fixture
def silent_server() -> Iterator[str]:
    """``host:port`` of a listener that never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def server() -> Iterator[tuple[int, str]]:
    """Process id and ``host:port`` of an HTTP server in a subprocess."""
    line = [sys.executable, http_server.__file__]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.pid, f"127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


@pytest.mark.parametrize("scheme", ["hdfs", "webhdfs"])
def test_silent_server_causes_a_timeout_and_leaves_no_process(scheme: str, silent_server: str, tmp_path: Path) -> None:
    url = f"{scheme}://{silent_server}/x"
    (tmp_path / "l").write_bytes(b"x")
    system = for_url(url, timeout_s=0.7)
    before = psutil.Process().children()  # pytest itself may have children
    calls = [
        lambda: system.status(url),
        lambda: system.read_bytes(url),
        lambda: system.write_bytes(url, b"x"),
        lambda: system.upload(tmp_path / "l", url),
    ]
    started_s = clock.awake()
    with ThreadPoolExecutor(len(calls)) as pool:
        errors = [future.exception() for future in [pool.submit(call) for call in calls]]
    assert clock.awake() - started_s < 4
    for error in errors:
        assert isinstance(error, StorageTimeout)
        assert isinstance(error, TimeoutError)
        assert error.path == url
        assert "within 0.7 s" in str(error)
    assert psutil.Process().children() == before  # a helper that is stuck is killed at once


@pytest.mark.parametrize("scheme", ["webhdfs", "http"])
def test_stopped_server_causes_a_timeout_and_can_be_used_again(scheme: str, server: tuple[int, str]) -> None:
    pid, address = server
    url = f"{scheme}://{address}/file"
    processes, threads = psutil.Process().children(), set(threading.enumerate())
    assert for_url(url).read_bytes(url) == http_server.CONTENT
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(StorageTimeout, match=r"within 0\.7 s"):
            for_url(url, timeout_s=0.7).read_bytes(url)
        assert psutil.Process().children() == processes
        assert set(threading.enumerate()) == threads
    finally:
        os.kill(pid, signal.SIGCONT)
    assert for_url(url).read_bytes(url) == http_server.CONTENT
    assert for_url(url).read_range(url, 5, 2) == http_server.CONTENT[5:7]


def test_environment_variable_sets_the_storage_timeout(silent_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPSML_STORAGE_TIMEOUT_S", "0.6")
    with pytest.raises(StorageTimeout, match=r"within 0.6 s.*accepts connections but does not answer"):
        for_url(f"hdfs://{silent_server}/x").status(f"hdfs://{silent_server}/x")


def test_invalid_setting_detected_in_the_helper_is_an_argument_error(
    silent_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HADOOP_TOKEN_FILE_LOCATION", str(tmp_path / "none"))
    with pytest.raises(ArgumentError, match="HADOOP_TOKEN_FILE_LOCATION"):
        for_url(f"webhdfs://{silent_server}/x").status(f"webhdfs://{silent_server}/x")
