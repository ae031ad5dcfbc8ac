"""Owners of listening sockets: the kernel's tables, and connections that are refused before a token is sent."""

from __future__ import annotations

import os
import socket
import urllib.error
import urllib.request
from contextlib import ExitStack
from datetime import datetime, timezone
from ipaddress import ip_address
from pathlib import Path

import pytest

from hopsml.core import listeners
from hopsml.core.listeners import ForeignListener, ListeningSocket
from hopsml.errors import ServingError
from hopsml.notebook import tensorboard
from hopsml.serving import client as serving_client
from hopsml.serving.server_records import ServerRecord
from tests.helpers.foreign_listener import OTHER, foreign_listener

pytestmark = pytest.mark.fast
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")

TABLES = Path(__file__).parent / "fixtures" / "listeners"
TCP, TCP6 = ((TABLES / name).read_text() for name in ("tcp.txt", "tcp6.txt"))


def listener(host: str, port: int, uid: int) -> ListeningSocket:
    return ListeningSocket(ip_address(host), port, uid)


def test_listening_ipv4_sockets_are_read_with_their_owners() -> None:
    assert listeners.parse(TCP, "little") == [
        listener("127.0.0.1", 24866, 0),
        listener("127.0.0.1", 44637, 12002),
        listener("0.0.0.0", 2024, 1000),
        listener("127.0.0.1", 44637, 4294967294),
    ]


def test_listening_ipv6_sockets_are_read_and_contained_ipv4_addresses_are_ipv4() -> None:
    assert listeners.parse(TCP6, "little") == [
        listener("::1", 8080, 1000),
        listener("::", 2024, 0),
        listener("127.0.0.1", 8081, 12002),
        listener("2001:db8::123:4567", 8082, 12002),
    ]


def test_addresses_of_a_big_endian_machine_are_in_network_order() -> None:
    line = "   0: 7F000001:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 1 1 0 100 0 0 10 0\n"
    assert listeners.parse(line, "big") == [listener("127.0.0.1", 8080, 1000)]


@pytest.mark.parametrize("text", ["", "\n", TCP.splitlines()[0], "0: 0100007F:6122 0A", "x" * 5000, "\0"])
def test_text_without_complete_lines_has_no_listeners(text: str) -> None:
    assert listeners.parse(text) == []


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", {1, 2, 3}),
        ("127.0.0.2", {2}),
        ("::1", {4, 5}),
        ("2001:db8::1", {5}),
    ],
)
def test_all_listeners_of_an_address_and_of_the_wildcard_count(host: str, expected: set[int]) -> None:
    there = [
        listener("127.0.0.1", 80, 1),
        listener("0.0.0.0", 80, 2),
        listener("127.0.0.1", 80, 3),  # SO_REUSEPORT
        listener("::1", 80, 4),
        listener("::", 80, 5),
        listener("127.0.0.1", 81, 6),
    ]
    assert {found.uid for found in listeners.accepting(there, ip_address(host), 80)} == expected


def test_ipv6_wildcard_counts_for_ipv4_only_without_an_ipv4_listener() -> None:
    """Otherwise anybody could make commands refuse a server, by an IPv6 listener at its port."""
    both = [listener("::", 80, 5), listener("127.0.0.1", 80, 1)]
    assert [found.uid for found in listeners.accepting(both, ip_address("127.0.0.1"), 80)] == [1]
    assert [found.uid for found in listeners.accepting(both[:1], ip_address("127.0.0.1"), 80)] == [5]


@pytest.mark.parametrize(
    ("host", "target"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("127.0.0.5", "127.0.0.5"), ("::1", "::1"), ("::", "::1")],
)
def test_own_listener_is_accepted(host: str, target: str) -> None:
    with ExitStack() as stack:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        server = stack.enter_context(socket.create_server((host, 0), family=family, reuse_port=True))
        port = server.getsockname()[1]
        stack.enter_context(socket.create_server((host, port), family=family, reuse_port=True))
        connection = stack.enter_context(socket.create_connection((target, port)))
        listeners.refuse_foreign(connection, "the server")


def test_connection_whose_listener_has_ended_is_refused() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    with socket.create_connection(server.getsockname()) as connection, server.accept()[0]:
        server.close()
        with pytest.raises(ConnectionRefusedError, match="any more"):
            listeners.refuse_foreign(connection, "the server")


def test_nothing_is_checked_where_the_system_does_not_show_its_sockets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    with socket.create_connection(server.getsockname()) as connection, server.accept()[0]:
        server.close()
        monkeypatch.setattr(listeners, "_TABLES", (tmp_path / "tcp", tmp_path / "tcp6"))
        listeners.refuse_foreign(connection, "the server")
        (tmp_path / "tcp").write_text(TCP.splitlines()[0] + "\n")  # a kernel without IPv6
        with pytest.raises(ConnectionRefusedError):
            listeners.refuse_foreign(connection, "the server")


@needs_root
@pytest.mark.parametrize(("host", "target"), [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("::", "127.0.0.1")])
def test_listener_of_another_user_is_refused_unless_trusted(
    host: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOPSML_TRUSTED_OWNERS", raising=False)
    with foreign_listener(host=host) as other, socket.create_connection((target, other.port)) as connection:
        with pytest.raises(
            ForeignListener, match=f"user {OTHER} listens at port {other.port} of .* instead of a server"
        ):
            listeners.refuse_foreign(connection, "a server")
        listeners.refuse_foreign(connection, "a server", owner=str(OTHER))
        monkeypatch.setenv("HOPSML_TRUSTED_OWNERS", str(OTHER))
        listeners.refuse_foreign(connection, "a server")


@needs_root
def test_http_request_is_not_sent_to_another_user() -> None:
    opener = urllib.request.build_opener(listeners.OwnServersHandler("the server"))
    with foreign_listener() as other:
        request = urllib.request.Request(f"http://127.0.0.1:{other.port}/", headers={"Authorization": "Bearer s3cr3t"})
        with pytest.raises(urllib.error.URLError) as refused:
            opener.open(request)
    assert isinstance(refused.value.reason, ForeignListener) and other.received == b""


@needs_root
def test_notebook_servers_token_is_not_sent_to_another_user() -> None:
    with foreign_listener() as other:
        note = {"url": f"http://127.0.0.1:{other.port}/", "token": "s3cr3t"}
        assert tensorboard.server_shows("/proxy/6006/", note) is None
    assert other.received == b""


@needs_root
def test_servings_token_and_rows_are_not_sent_to_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPSML_SERVING_TOKEN", "s3cr3t")
    with foreign_listener() as other:
        record = ServerRecord("digits", "127.0.0.1", other.port, "h", "me", "", 1, datetime.now(timezone.utc))
        with pytest.raises(ServingError, match="instead of the server of 'digits' of me, so no token was sent"):
            serving_client.post_json(record, "/v1/models/digits:predict", {"instances": [[1.0]]}, 5.0)
    assert other.received == b""
