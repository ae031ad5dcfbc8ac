"""Tests of Hadoop's token file, built here byte by byte as Hadoop's Writables are defined."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import traceback
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsml.core import delegation_tokens as tokens
from hopsml.errors import ArgumentError, StorageError
from hopsml.storage.filesystem import for_url
from hopsml.storage.remote.hadoop import token_for_web
from hopsml.submission import spark_command
from tests.helpers.spnego_server import spnego_server

pytestmark = pytest.mark.fast

IDENTIFIER = b"\x00" + b"i" * 200  # longer than 127: its length takes two bytes
LONG = b"\x8f\xc9" + IDENTIFIER  # -113: one byte follows; 0xc9 = 201


def token(service: bytes, kind: bytes = b"HDFS_DELEGATION_TOKEN") -> bytes:
    fields = (LONG, b"\x08password"[:9], bytes([len(kind)]) + kind, bytes([len(service)]) + service)
    return b"\x05alias" + b"".join(fields)


def test_token_file_is_parsed_and_converted_to_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = b"HDTS\0\x02" + token(b"ha-hdfs:ns1") + token(b"rm:8032", b"YARN_AM_RM_TOKEN") + b"\0"
    file = tmp_path / "tokens"
    file.write_bytes(data)
    monkeypatch.setenv("HADOOP_TOKEN_FILE_LOCATION", str(file))
    found = tokens.from_environment()
    first, second = found.tokens
    assert (first.alias, first.identifier, first.password) == ("alias", IDENTIFIER, b"password")
    assert (first.kind, first.service) == ("HDFS_DELEGATION_TOKEN", "ha-hdfs:ns1")
    assert second.kind == "YARN_AM_RM_TOKEN"
    text = first.as_text()
    wire = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    assert wire == token(b"ha-hdfs:ns1")[len(b"\x05alias") :]


def test_broken_token_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = b"HDTS\0\x01" + token(b"s")
    cases = (
        (b"XXXX", "HDTS"),
        (b"HDTS\x01", "version"),
        (good[:-3], "ends within"),
        (good, "ends within"),
        (good + b"\0more", "4 bytes after its last entry"),
        (b"HDTS\0\x8e\xff\xff\0", "announces 65535 entries"),
        (b"HDTS\0\xff\0", "announces -1 entries"),
        (b"HDTS\0\x01\xff", "ends within"),
        (b"HDTS\0\x01\x01\xff" + token(b"s")[6:] + b"\0", "not UTF-8"),
        (b"HDTS" + bytes(tokens.MAX_BYTES), "at most"),
    )
    for data, reason in cases:
        with pytest.raises(ArgumentError, match=reason):
            tokens.parse(data)
    monkeypatch.setenv("HADOOP_TOKEN_FILE_LOCATION", str(tmp_path / "none"))
    with pytest.raises(ArgumentError, match="HADOOP_TOKEN_FILE_LOCATION"):
        tokens.from_environment()
    monkeypatch.delenv("HADOOP_TOKEN_FILE_LOCATION")
    assert tokens.from_environment() == tokens.Credentials()


def identifier(owner: bytes, issued_ms: int, last_ms: int) -> bytes:
    """An HDFS token's identifier, as Hadoop writes it."""
    names = b"".join(bytes([len(name)]) + name for name in (owner, b"yarn", b"service"))
    times = b"".join(b"\x8a" + value.to_bytes(6, "big") for value in (issued_ms, last_ms))  # -118: six bytes follow
    return b"\0" + names + times + b"\x07\x02"


def made(service: str, password: bytes = b"secret-password", kind: str = tokens.HDFS_KIND) -> tokens.Token:
    """A token for a service."""
    return tokens.Token("alias", identifier(b"alice@R", 1_700_000_000_000, 1_700_000_300_000), password, kind, service)


def test_identifier_names_owner_and_times() -> None:
    assert made("s").describe() == tokens.TokenFacts("alice@R", "yarn", "service", 1_700_000_000.0, 1_700_000_300.0)
    with pytest.raises(ArgumentError, match="kind 'kms-dt' has no readable identifier"):
        made("s", kind="kms-dt").describe()
    with pytest.raises(ArgumentError, match="ends within"):
        tokens.Token("a", b"\0\x05ali", b"", tokens.HDFS_KIND, "s").describe()


@given(st.binary(max_size=200))
def test_any_content_is_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(ArgumentError):
        assert tokens.parse(b"HDTS\0" + data).encode()
    with contextlib.suppress(ArgumentError):
        tokens.Token("", data, b"", tokens.HDFS_KIND, "").describe()


_TEXT = st.text(max_size=200)
_TOKEN = st.builds(tokens.Token, _TEXT, st.binary(max_size=300), st.binary(max_size=20), _TEXT, _TEXT)
_CREDENTIALS = st.builds(
    tokens.Credentials,
    st.lists(_TOKEN, max_size=3).map(tuple),
    st.lists(st.tuples(_TEXT, st.binary(max_size=9)), max_size=3).map(tuple),
)


@given(_CREDENTIALS)
def test_content_is_read_as_it_was_written(credentials: tokens.Credentials) -> None:
    assert tokens.parse(credentials.encode()) == credentials


def test_newer_token_of_a_service_replaces_the_older_one() -> None:
    old = tokens.Credentials((made("a", b"1"), made("b", b"2")), (("name", b"1"), ("kept", b"2")))
    new = tokens.Credentials((made("b", b"3"), made("b", b"4", "kms-dt")), (("name", b"3"),))
    both = old.updated(new)
    assert [token.password for token in both.tokens] == [b"1", b"3", b"4"]
    assert dict(both.secrets) == {"name": b"3", "kept": b"2"}
    assert [token.password for token in both.of_kinds([tokens.HDFS_KIND]).tokens] == [b"1", b"3"]
    assert both.of_kinds([tokens.HDFS_KIND]).secrets == ()


def test_file_is_private_and_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    tokens.write(path, tokens.Credentials((made("a"),)))
    before = path.open("rb")
    tokens.write(path, tokens.Credentials((made("b"),)))
    with before:
        assert tokens.parse(before.read()).tokens[0].service == "a"
    assert tokens.read(path).tokens[0].service == "b"
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["tokens"]


def test_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "tokens").mkdir()
    with pytest.raises(OSError, match="directory"):
        tokens.write(tmp_path / "tokens", tokens.Credentials())
    assert os.listdir(tmp_path) == ["tokens"]


def test_text_form_shows_no_secret() -> None:
    shown = repr(tokens.Credentials((made("service-a"),), (("name", b"hidden-value"),)))
    assert "service-a" in shown and "secret-password" not in shown and "hidden" not in shown and "alice" not in shown


@pytest.mark.parametrize("behaviour", ["refuses", "hangs up", "answers nonsense"])
def test_webhdfs_errors_do_not_contain_the_token(
    behaviour: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        service = f"127.0.0.1:{server.getsockname()[1]}"

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:  # closed: the test is over
                    return
                url = connection.recv(4096).decode()
                seen.append(url)
                if behaviour == "answers nonsense":
                    connection.sendall(f"HTTP/1.1 500 No\r\nContent-Length: {len(url)}\r\n\r\n{url}".encode())
                connection.close()

        seen: list[str] = []
        answering = threading.Thread(target=serve)
        if behaviour == "refuses":
            server.close()
        else:
            answering.start()
        (tmp_path / "tokens").write_bytes(b"HDTS\0\x01" + token(service.encode()) + b"\0")
        monkeypatch.setenv("HADOOP_TOKEN_FILE_LOCATION", str(tmp_path / "tokens"))
        secret = tokens.from_environment().tokens[0].as_text()
        with caplog.at_level(logging.DEBUG), pytest.raises(StorageError) as raised:
            for_url(f"webhdfs://{service}/x", 5.0).read_bytes(f"webhdfs://{service}/x")
        if behaviour != "refuses":
            server.shutdown(socket.SHUT_RDWR)
            answering.join()
            assert any(f"delegation={secret}" in url for url in seen), "the token was sent"
    message = "".join(traceback.format_exception(raised.value))
    assert service in message and secret not in message and secret not in caplog.text


@pytest.mark.parametrize("given", ["", "/given/container_tokens"])
@pytest.mark.parametrize("first_ends_first", [True, False])
def test_own_files_end_in_any_order(
    given: str, first_ends_first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(tokens.VARIABLE, raising=False)
    if given:
        monkeypatch.setenv(tokens.VARIABLE, given)
    before = dict(os.environ)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    first, second = tokens.OwnTokenFile(tmp_path / "a"), tokens.OwnTokenFile(tmp_path / "b")
    assert os.environ[tokens.VARIABLE] == second.path
    ends, stays = (first, second) if first_ends_first else (second, first)
    ends.close()
    assert os.environ[tokens.VARIABLE] == stays.path
    assert tokens.environment_as_given(os.environ).get(tokens.VARIABLE, "") == given
    stays.close()
    assert dict(os.environ) == before


def test_process_that_logs_in_itself_gets_the_given_file_and_not_that_of_hopsml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(tokens.VARIABLE, "/given/container_tokens")
    own = tokens.OwnTokenFile(tmp_path)
    printed = subprocess.check_output([sys.executable, "-c", "import json, os; print(json.dumps(dict(os.environ)))"])
    of_child = json.loads(printed)
    monkeypatch.setenv(tokens.VARIABLE, "/chosen/later")
    assert tokens.environment_as_given(os.environ)[tokens.VARIABLE] == "/chosen/later", "the user's own"
    with pytest.MonkeyPatch.context() as child:
        for name in (tokens.VARIABLE, tokens.OF_OWN_FILE):
            child.setenv(name, of_child[name])
        (tmp_path / "child").mkdir()
        other = tokens.OwnTokenFile(tmp_path / "child")
        assert tokens.environment_as_given(os.environ)[tokens.VARIABLE] == "/given/container_tokens"
        other.close()
        assert os.environ[tokens.VARIABLE] == own.path
        assert spark_command.environment()[tokens.VARIABLE] == "/given/container_tokens"
        child.setenv(tokens.OF_OWN_FILE, "broken")
        assert tokens.environment_as_given(os.environ)[tokens.VARIABLE] == own.path
    own.close()


def conf_of(folder: Path, **settings: str) -> Path:
    """A folder with an hdfs-site.xml; ``__`` in a name stands for a dot, ``___`` for a hyphen."""
    folder.mkdir(exist_ok=True)
    named = {key.replace("___", "-").replace("__", "."): value for key, value in settings.items()}
    entries = (f"<property><name>{key}</name><value>{value}</value></property>" for key, value in named.items())
    (folder / "hdfs-site.xml").write_text(f"<configuration>{''.join(entries)}</configuration>")
    return folder


LONE = {"fs__defaultFS": "hdfs://nn.lab:8020"}
MOVED = LONE | {"dfs__namenode__http___address": "0.0.0.0:50070", "dfs__namenode__https___address": "web.lab:50470"}
TWO = {
    "fs__defaultFS": "hdfs://ns1",
    "dfs__ha__namenodes__ns1": "a,b",
    "dfs__namenode__rpc___address__ns1__a": "a.lab:8020",
    "dfs__namenode__rpc___address__ns1__b": "b.lab:8020",
    "dfs__namenode__http___address__ns1__a": "a.lab:9870",
    "dfs__namenode__http___address__ns1__b": "b.lab:9999",
}
BESIDE = {
    "dfs__namenode__rpc___address__ns1": "a.lab:8020",
    "dfs__namenode__rpc___address__ns2": "b.lab:8021",
    "dfs__namenode__http___address__ns1": "a.lab:9870",
    "dfs__namenode__http___address__ns2": "b.lab:9870",
}


@pytest.mark.parametrize(
    ("conf", "services", "address", "expected"),
    [
        (LONE, ["nn.lab:8020"], "nn.lab:9870", "nn.lab:8020"),
        (LONE, ["nn.lab:8020"], "nn.lab:9871", "nn.lab:8020"),
        (LONE, ["nn.lab:8020"], "nn.lab:9999", None),  # anybody's server on the same host
        (LONE, ["nn.lab:8020"], "evil.example:9870", None),  # not even the only token is for all
        (LONE, ["nn.lab:8020"], "nn.lab:8020", "nn.lab:8020"),  # a token that names the web service itself
        (LONE | {"fs__defaultFS": "hdfs://nn.lab"}, ["nn.lab:8020"], "nn.lab:9870", "nn.lab:8020"),
        (MOVED, ["nn.lab:8020"], "nn.lab:50070", "nn.lab:8020"),
        (MOVED, ["nn.lab:8020"], "web.lab:50470", "nn.lab:8020"),
        (MOVED, ["nn.lab:8020"], "nn.lab:9870", None),  # the NameNode is elsewhere
        (MOVED, ["other.lab:8020"], "nn.lab:50070", None),  # the token of another cluster
        (MOVED, ["other.lab:8020"], "other.lab:9870", "other.lab:8020"),
        ({}, ["nn.lab:8020"], "nn.lab:9870", "nn.lab:8020"),
        ({}, ["ha-hdfs:ns1"], "nn.lab:9870", None),
        (TWO, ["ha-hdfs:ns1"], "a.lab:9870", "ha-hdfs:ns1"),
        (TWO, ["ha-hdfs:ns1"], "b.lab:9999", "ha-hdfs:ns1"),
        (TWO, ["ha-hdfs:ns1"], "b.lab:9870", None),
        (TWO, ["ha-hdfs:ns1"], "evil.example:9870", None),
        (TWO, ["ha-hdfs:ns2", "ha-hdfs:ns1"], "a.lab:9870", "ha-hdfs:ns1"),
        (BESIDE, ["a.lab:8020", "b.lab:8021"], "b.lab:9870", "b.lab:8021"),
        (BESIDE, ["a.lab:8020", "b.lab:8021"], "a.lab:9870", "a.lab:8020"),
        (BESIDE, ["a.lab:8020"], "b.lab:9870", None),
        # hadoop.security.token.service.use_ip, and a name by which the configuration does not know the host
        ({"fs__defaultFS": "hdfs://localhost:8020"}, ["127.0.0.1:8020"], "localhost:9870", "127.0.0.1:8020"),
        ({"fs__defaultFS": "hdfs://localhost:8020"}, ["localhost:8020"], "127.0.0.1:9870", "localhost:8020"),
    ],
)
def test_token_is_only_for_the_web_services_of_its_hdfs(
    conf: dict[str, str],
    services: list[str],
    address: str,
    expected: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(conf_of(tmp_path / "conf", **conf)))
    found = token_for_web(address, tokens.Credentials(tuple(made(service) for service in services)))
    assert (found.service if found else None) == expected


@pytest.mark.parametrize("is_namenode", [True, False])
def test_webhdfs_of_another_server_receives_no_token(
    is_namenode: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with spnego_server(lambda method, path: (404, {}, b"")) as server:
        conf = {"fs__defaultFS": "hdfs://localhost:8020"}
        if is_namenode:
            conf["dfs__namenode__http___address"] = server.address
        monkeypatch.setenv("HADOOP_CONF_DIR", str(conf_of(tmp_path / "conf", **conf)))
        tokens.write(tmp_path / "tokens", tokens.Credentials((made("localhost:8020"),)))
        monkeypatch.setenv(tokens.VARIABLE, str(tmp_path / "tokens"))
        url = f"webhdfs://{server.address}/x"
        with pytest.raises((StorageError, OSError)) as raised:
            for_url(url, 60.0).status(url)
        assert server.seen, raised.value
        assert ["delegation=" in path for _, path, _ in server.seen] == [is_namenode] * len(server.seen)
