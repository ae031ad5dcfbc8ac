"""Tests of the reader of Hadoop's token file, built here byte by byte as Hadoop's Writables are defined."""

from __future__ import annotations

import base64
import logging
import socket
import threading
import traceback
from pathlib import Path

import pytest

from hopsml.errors import ArgumentError, StorageError
from hopsml.storage.filesystem import for_url
from hopsml.storage.remote import hadoop

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
    first, second = hadoop.from_environment()
    assert (first.alias, first.identifier, first.password) == ("alias", IDENTIFIER, b"password")
    assert (first.kind, first.service) == ("HDFS_DELEGATION_TOKEN", "ha-hdfs:ns1")
    assert second.kind == "YARN_AM_RM_TOKEN"
    assert hadoop.for_service([first, second], "ns1") is first
    assert hadoop.for_service([second], "ns1") is None
    text = first.as_text()
    wire = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    assert wire == token(b"ha-hdfs:ns1")[len(b"\x05alias") :]


def test_token_is_selected_by_its_service() -> None:
    one, two = hadoop.parse(b"HDTS\0\x02" + token(b"127.0.0.1:8020") + token(b"ha-hdfs:ns2") + b"\0")
    assert hadoop.for_service([one, two], "ns2") is two
    assert hadoop.for_service([one, two], "127.0.0.1:8020") is one
    assert hadoop.for_service([one, two], "other") is None


def test_broken_token_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = b"HDTS\0\x01" + token(b"s")
    for data, reason in ((b"XXXX", "HDTS"), (b"HDTS\x01", "version"), (good[:-3], "ends within")):
        with pytest.raises(ArgumentError, match=reason):
            hadoop.parse(data)
    monkeypatch.setenv("HADOOP_TOKEN_FILE_LOCATION", str(tmp_path / "none"))
    with pytest.raises(ArgumentError, match="HADOOP_TOKEN_FILE_LOCATION"):
        hadoop.from_environment()
    monkeypatch.delenv("HADOOP_TOKEN_FILE_LOCATION")
    assert hadoop.from_environment() == []


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
        secret = hadoop.from_environment()[0].as_text()
        with caplog.at_level(logging.DEBUG), pytest.raises(StorageError) as raised:
            for_url(f"webhdfs://{service}/x", 5.0).read_bytes(f"webhdfs://{service}/x")
        if behaviour != "refuses":
            server.shutdown(socket.SHUT_RDWR)
            answering.join()
            assert any(f"delegation={secret}" in url for url in seen), "the token was sent"
    message = "".join(traceback.format_exception(raised.value))
    assert service in message and secret not in message and secret not in caplog.text
