"""Tests of job commands whose address has no job service: one line with address and remedy."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopsml import service_connection
from hopsml.client import Client
from hopsml.core import file_locks
from hopsml.errors import ArgumentError, ServiceError
from tests.helpers.command_line import Cli

pytestmark = pytest.mark.local

COMMANDS = [
    *(
        "jobs ls",
        "jobs show 1",
        "jobs why 1",
        "jobs logs 1",
        "jobs logs -f 1",
        "jobs cancel 1",
        "jobs pause 1",
        "jobs resume 1",
    ),
    *(
        "jobs move 1 --priority 3",
        "jobs clone 1",
        "jobs submit job.yaml",
        "jobs run train.py",
        "jobs submit nightly.yaml",
    ),
    *(
        "schedules ls",
        "schedules show 1",
        "schedules pause 1",
        "schedules resume 1",
        "schedules trigger 1",
        "schedules rm 1",
    ),
    *(
        "secrets put s3-key --file secret",
        "secrets ls",
        "secrets rm s3-key",
        "audit",
        "tokens create bob",
        "tokens ls",
        "tokens revoke x",
    ),
]
JSON = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n{"status": "ok"}'
HTML = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n<html>It works</html>"
MISSING = b"HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n<html>nothing</html>"
ELSEWHERE = b"HTTP/1.1 302 Found\r\nLocation: https://login.example/\r\nConnection: close\r\n\r\n"
SSH = b"SSH-2.0-OpenSSH_9.6\r\n"


class OtherServer:
    """Server that sends the same answer to every request."""

    def __init__(self, answer: bytes) -> None:
        self._answer_bytes, self.received = answer, b""
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._answer)
        self._thread.start()

    def _answer(self) -> None:
        with contextlib.suppress(OSError):  # it was shut down
            while True:
                connection, _ = self._socket.accept()
                with connection, contextlib.suppress(OSError):
                    connection.settimeout(1.0)
                    self.received += connection.recv(1 << 16)
                    connection.sendall(self._answer_bytes)
                    connection.shutdown(socket.SHUT_WR)
                    while more := connection.recv(1 << 16):  # what is not read by its close breaks the connection
                        self.received += more

    def close(self) -> None:
        """End it."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()


@pytest.fixture
def other_server(request: pytest.FixtureRequest) -> Iterator[OtherServer]:
    made = OtherServer(request.param)
    yield made
    made.close()


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(service_connection, "_PAUSE_S", 0.0)
    monkeypatch.setenv("HOPSML_TOKEN", "s3cr3t-token")
    (tmp_path / "train.py").touch()
    (tmp_path / "secret").write_text("Hush-93-wolves")
    text = "name: digits\nworkspace: .\ntasks: {main: {script: train.py}}\n"
    (tmp_path / "job.yaml").write_text(text)
    (tmp_path / "nightly.yaml").write_text(text + 'schedule: "0 3 * * *"\n')


def error_line(cli: Cli, command: str) -> str:
    """Return the last line that a failing command prints."""
    ended = cli(*command.split())
    assert ended.status == 1 and not ended.out.startswith("Traceback"), (command, ended)
    (line,) = ended.err.splitlines()[-1:]
    assert line.startswith("hopsml: ") and "Traceback" not in ended.err and "s3cr3t" not in ended.err, ended
    return line


@pytest.mark.parametrize("other_server", [JSON], indirect=True, ids=["json"])
def test_every_command_reports_a_server_of_another_kind(
    cli: Cli, code: None, other_server: OtherServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOPSML_SERVER", other_server.address)
    for command in COMMANDS:
        line = error_line(cli, command)
        assert (
            f"the server at {other_server.address} is not a job service" in line and "set HOPSML_SERVER to" in line
        ), line


@pytest.mark.parametrize(
    ("other_server", "words"),
    [(HTML, "it says '<html>It works"), (MISSING, "HTTP 404"), (SSH, "its answer is not HTTP: BadStatusLine"),
     (ELSEWHERE, "HTTP 302, which was redirected to https://login.example/")],
    indirect=["other_server"],
    ids=["html", "missing", "ssh", "redirect"],
)  # fmt: skip
def test_answer_of_another_server_is_described(
    cli: Cli, code: None, other_server: OtherServer, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOPSML_SERVER", other_server.address)
    for command in ("jobs show 1", "secrets put s3-key --file secret"):
        line = error_line(cli, command)
        assert other_server.address in line and words in line, line


def test_silent_server_is_requested_once(code: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_connection, "TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(
            ServiceError, match=f"{address} does not answer .it has sent nothing for 0.2 s.; check that"
        ):
            Client(address, "a-token").jobs()
        silent.setblocking(False)
        silent.accept()[0].close()
        with pytest.raises(BlockingIOError):
            silent.accept()


@pytest.mark.parametrize("other_server", [b""], indirect=True, ids=["closes"])
def test_unreachable_service_is_reported_with_a_remedy(
    cli: Cli, code: None, other_server: OtherServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nothing = f"http://127.0.0.1:{taken.getsockname()[1]}"
    for address, commands in ((nothing, COMMANDS), (other_server.address, COMMANDS[:2])):
        monkeypatch.setenv("HOPSML_SERVER", address)
        for command in commands:
            line = error_line(cli, command)
            assert f"the job service at {address} does not answer" in line and "`hopsml server` is running" in line, (
                line
            )


@pytest.mark.parametrize(
    "address", ["localhost:8000", "http://", "ftp://x", "http://x:y", "http://x/?token=s3cr3t", "http://a b"]
)
def test_invalid_service_address_is_refused(
    cli: Cli, code: None, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOPSML_SERVER", address)
    line = error_line(cli, "jobs ls")
    assert "is not the address of a job service; use the address that `hopsml server` has printed" in line, line


def test_invalid_token_is_refused_without_repeating_it() -> None:
    with pytest.raises(ArgumentError, match="characters that no token has") as refused:
        Client("http://127.0.0.1:1", "s3cr3t\nHost: x")
    assert "s3cr3t" not in str(refused.value)


def test_invalid_client_file_is_ignored(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPSML_SERVER_STATE", str(tmp_path))
    for text in ("[]", "null", "{}", "\x00"):
        (tmp_path / "client.json").write_text(text)
        ended = cli("jobs", "ls")
        assert ended.status == 1 and "start one with `hopsml server`" in ended.err, ended


@pytest.mark.parametrize("other_server", [ELSEWHERE], indirect=True, ids=["redirect"])
def test_token_is_not_sent_to_a_redirect_target(other_server: OtherServer, monkeypatch: pytest.MonkeyPatch) -> None:
    other = OtherServer(JSON)
    try:
        other_server._answer_bytes = ELSEWHERE.replace(b"https://login.example", other.address.encode())
        with pytest.raises(ServiceError, match=f"redirected to {other.address}/"):
            Client(other_server.address, "s3cr3t").jobs()
        assert b"s3cr3t" in other_server.received and not other.received
    finally:
        other.close()


def test_invalid_answer_is_reported_in_one_line() -> None:
    odd = OtherServer(JSON.replace(b'{"status": "ok"}', json.dumps({"jobs": "a\nb", "cursor": 1}).encode()))
    try:
        with pytest.raises(ServiceError) as refused:
            Client(odd.address, "x").jobs()
        assert "\n" not in str(refused.value)
    finally:
        odd.close()


def test_starting_server_is_reported(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no address at its first start, and that of the previous server later."""
    monkeypatch.setenv("HOPSML_SERVER_STATE", str(tmp_path))
    for name in ("HOPSML_SERVER", "HOPSML_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        unused = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    with file_locks.locked(tmp_path / service_connection.STARTING):
        for known in (None, {"address": unused, "token": "x"}):
            if known is not None:
                (tmp_path / "client.json").write_text(json.dumps(known))
            ended = cli("jobs", "ls")
            assert ended.status == 1 and "has been starting for" in ended.err
            assert "repeat the command when `hopsml server` has printed its address" in ended.err
        with pytest.raises(ServiceError, match="does not answer"):  # another server, named by the caller
            Client(unused, "x").jobs()
    assert "does not answer" in cli("jobs", "ls").err  # the file of a server that was killed has no lock
