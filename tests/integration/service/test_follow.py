"""``hopsml jobs logs -f`` against a real server: continues over a restart, ends with the job, protects a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from hopsml.client import Client
from hopsml.core import log_stream
from hopsml.core.states import Lifecycle
from hopsml.errors import JobNotFound
from tests.helpers.clock import END_S
from tests.helpers.cluster.workloads import wait_until
from tests.integration.service.stage import Stage

pytestmark = pytest.mark.local


class Follower:
    """Thread that follows a log and appends it to ``text``."""

    def __init__(self, log: Iterator[str]) -> None:
        self.text, self._log = "", log
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def _follow(self) -> None:
        for text in self._log:
            self.text += text

    def ended(self) -> str:
        self._thread.join(END_S)
        assert not self._thread.is_alive()
        return self.text


@pytest.mark.variant
def test_log_follower_continues_after_a_server_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_stream, "PATIENCE_S", 300.0)  # of a machine that has much to do
    stage = Stage(tmp_path)
    try:
        _follow_over_a_restart(stage)
    finally:
        stage.close()


def _follow_over_a_restart(stage: Stage) -> None:
    job = stage.submit("talks", 1)
    stage.reaches(job, Lifecycle.RUNNING)
    stage.prints(job, "one\n")
    follower = Follower(stage.client("ana").follow(job.id))
    wait_until(lambda: follower.text == "one\n", "the first line")
    stage.restart(lambda: stage.prints(job, "two\n"))
    wait_until(lambda: follower.text == "one\ntwo\n", "what was printed meanwhile, once")
    stage.prints(job, "three\n")
    stage.ends(job)
    assert follower.ended() == "one\ntwo\nthree\n"
    with pytest.raises(JobNotFound):
        list(stage.client("ana").follow("nothing-9999"))


def test_log_to_a_terminal_is_sanitized_and_to_a_pipe_unchanged(stage: Stage) -> None:
    job = stage.submit("paints", 1)
    stage.reaches(job, Lifecycle.RUNNING)
    raw = "\x1b[31mred\x1b[0m \x1b]52;c;cm0gLXJm\x07\x1b[2J\x1b]0;title\x07end\n"
    stage.prints(job, raw)
    stage.ends(job)
    command = [sys.executable, "-m", "hopsml", "jobs", "logs", "-f", job.id]
    client = stage.client("ana")
    variables = {**os.environ, "HOPSML_SERVER": client._address, "HOPSML_TOKEN": client._token}
    piped = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=END_S)
    assert (piped.returncode, piped.stdout) == (0, raw)
    ours, theirs = pty.openpty()
    try:
        ended = subprocess.run(command, env=variables, stdout=theirs, stderr=subprocess.PIPE, timeout=END_S)
        shown = os.read(ours, 1 << 16).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert (ended.returncode, shown) == (0, "\x1b[31mred\x1b[0m end\r\n\x1b[0m")


class OlderServer(BaseHTTPRequestHandler):
    """Server without streams: a log is requested piece by piece."""

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        known = {
            "/api/v1/jobs/old-1": DETAIL,
            "/api/v1/jobs/old-1/log": b'{"text": "", "end": 4}'
            if "offset=4" in query
            else b'{"text": "one\\n", "end": 4}',
        }
        self.send_response(200 if path in known else 404)
        self.end_headers()
        self.wfile.write(known.get(path, b'{"error": "there is nothing at this address", "remedy": ""}'))

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


DETAIL = (
    b'{"id": "old-1", "serial": 1, "name": "old", "owner": "ana", "queue": "default", "priority": 50, "state": "FINISHED",'
    b'"cause": "", "tries": 1, "retries": 0, "preemptions": 0, "submitted_s": 1, "started_s": 1, "ended_s": 1, "why": "",'
    b'"spec": "", "profile": "local", "applications": []}'
)


def test_log_of_a_server_without_streams_is_polled() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), OlderServer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            client = Client(f"http://127.0.0.1:{server.server_port}", "token")
            assert list(client.follow("old-1")) == ["one\n"]
            with pytest.raises(JobNotFound):
                list(client.follow("old-2"))
        finally:
            server.shutdown()
            thread.join()
