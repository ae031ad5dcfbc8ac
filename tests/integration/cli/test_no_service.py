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
from hopsml.core import processes
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


class Stranger:
    """Says the same to everybody, whatever is asked."""

    def __init__(self, said: bytes) -> None:
        self._said, self.heard = said, b""
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
                    self.heard += connection.recv(1 << 16)
                    connection.sendall(self._said)
                    connection.shutdown(socket.SHUT_WR)
                    while more := connection.recv(1 << 16):  # what is not read by its close breaks the connection
                        self.heard += more

    def close(self) -> None:
        """End it."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()


@pytest.fixture
def stranger(request: pytest.FixtureRequest) -> Iterator[Stranger]:
    made = Stranger(request.param)
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


def told(cli: Cli, command: str) -> str:
    """The line that a command ends with."""
    ended = cli(*command.split())
    assert ended.status == 1 and not ended.out.startswith("Traceback"), (command, ended)
    (line,) = ended.err.splitlines()[-1:]
    assert line.startswith("hopsml: ") and "Traceback" not in ended.err and "s3cr3t" not in ended.err, ended
    return line


@pytest.mark.parametrize("stranger", [JSON], indirect=True, ids=["json"])
def test_every_command_says_that_something_else_answers(
    cli: Cli, code: None, stranger: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOPSML_SERVER", stranger.address)
    for command in COMMANDS:
        line = told(cli, command)
        assert f"the server at {stranger.address} is not a job service" in line and "set HOPSML_SERVER to" in line, line


@pytest.mark.parametrize(
    ("stranger", "words"),
    [(HTML, "it says '<html>It works"), (MISSING, "HTTP 404"), (SSH, "its answer is not HTTP: BadStatusLine"),
     (ELSEWHERE, "HTTP 302, which was redirected to https://login.example/")],
    indirect=["stranger"],
    ids=["html", "missing", "ssh", "elsewhere"],
)  # fmt: skip
def test_what_else_may_answer(
    cli: Cli, code: None, stranger: Stranger, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOPSML_SERVER", stranger.address)
    for command in ("jobs show 1", "secrets put s3-key --file secret"):
        line = told(cli, command)
        assert stranger.address in line and words in line, line


def test_a_server_that_stands_still_is_asked_once(code: None, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize("stranger", [b""], indirect=True, ids=["closes"])
def test_nobody_answers(cli: Cli, code: None, stranger: Stranger, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nothing = f"http://127.0.0.1:{taken.getsockname()[1]}"
    for address, commands in ((nothing, COMMANDS), (stranger.address, COMMANDS[:2])):
        monkeypatch.setenv("HOPSML_SERVER", address)
        for command in commands:
            line = told(cli, command)
            assert f"the job service at {address} does not answer" in line and "`hopsml server` is running" in line, (
                line
            )


@pytest.mark.parametrize(
    "address", ["localhost:8000", "http://", "ftp://x", "http://x:y", "http://x/?token=s3cr3t", "http://a b"]
)
def test_an_address_that_is_none(cli: Cli, code: None, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPSML_SERVER", address)
    line = told(cli, "jobs ls")
    assert "is not the address of a job service; use the address that `hopsml server` has printed" in line, line


def test_a_token_with_a_line_in_it_is_not_repeated() -> None:
    with pytest.raises(ArgumentError, match="characters that no token has") as refused:
        Client("http://127.0.0.1:1", "s3cr3t\nHost: x")
    assert "s3cr3t" not in str(refused.value)


def test_a_file_of_the_server_that_is_none(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPSML_SERVER_STATE", str(tmp_path))
    for text in ("[]", "null", "{}", "\x00"):
        (tmp_path / "client.json").write_text(text)
        ended = cli("jobs", "ls")
        assert ended.status == 1 and "start one with `hopsml server`" in ended.err, ended


@pytest.mark.parametrize("stranger", [ELSEWHERE], indirect=True, ids=["elsewhere"])
def test_a_token_does_not_follow_elsewhere(stranger: Stranger, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Stranger(JSON)
    try:
        stranger._said = ELSEWHERE.replace(b"https://login.example", other.address.encode())
        with pytest.raises(ServiceError, match=f"redirected to {other.address}/"):
            Client(stranger.address, "s3cr3t").jobs()
        assert b"s3cr3t" in stranger.heard and not other.heard
    finally:
        other.close()


def test_a_line_of_an_answer_that_makes_no_sense_is_one_line() -> None:
    odd = Stranger(JSON.replace(b'{"status": "ok"}', json.dumps({"jobs": "a\nb", "cursor": 1}).encode()))
    try:
        with pytest.raises(ServiceError) as refused:
            Client(odd.address, "x").jobs()
        assert "\n" not in str(refused.value)
    finally:
        odd.close()


def test_a_server_that_is_just_starting_is_named(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """At its first start there is no address yet, later there is the one of the server before."""
    monkeypatch.setenv("HOPSML_SERVER_STATE", str(tmp_path))
    for name in ("HOPSML_SERVER", "HOPSML_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / service_connection.STARTING).write_text(processes.process_name())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        nobody = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    for known in (None, {"address": nobody, "token": "x"}):
        if known is not None:
            (tmp_path / "client.json").write_text(json.dumps(known))
        ended = cli("jobs", "ls")
        assert ended.status == 1 and "has been starting for" in ended.err
        assert "repeat the command when `hopsml server` has printed its address" in ended.err
    machine, _, start = processes.process_name().rpartition(".")[0].rpartition(".")
    (tmp_path / service_connection.STARTING).write_text(
        f"{machine}.{int(start) + 1}.abcd"
    )  # another process has its id now
    assert "does not answer" in cli("jobs", "ls").err
