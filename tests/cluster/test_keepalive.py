"""Tests of keepalive on all sockets of a process, whichever library has opened them."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from hopsml.cluster.worker import server_guard
from hopsml.core.variables import SETTINGS
from hopsml.errors import ArgumentError

pytestmark = pytest.mark.fast


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket, socket.socket]]:
    """Yield a listening socket, and both ends of a connection to it."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as ours,
        listening.accept()[0] as theirs,
    ):
        yield listening, ours, theirs


def options(one: socket.socket) -> tuple[int, ...]:
    tcp = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    return (
        one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
        *(one.getsockopt(socket.IPPROTO_TCP, option) for option in tcp),
    )


def test_every_tcp_socket_of_the_process_gets_probes(pair: tuple[socket.socket, ...]) -> None:
    known = server_guard.scan_sockets(6.0, set())
    assert [options(one) for one in pair] == [(1, 6, 2, server_guard.PROBES)] * 3
    listening = pair[0]
    with socket.create_connection(listening.getsockname()) as ours, listening.accept()[0] as theirs:
        assert options(theirs) == (1, 6, 2, server_guard.PROBES)  # as the socket that listens
        assert options(ours)[0] == 0
        assert server_guard.scan_sockets(6.0, known) > known
        assert options(ours) == (1, 6, 2, server_guard.PROBES)


def test_a_socket_whose_owner_has_set_keepalive_stays_as_it_is(pair: tuple[socket.socket, ...]) -> None:
    one = pair[1]
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 77)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    server_guard.scan_sockets(6.0, set())
    assert options(one)[:2] == (1, 77)


def test_other_sockets_and_files_are_left_alone() -> None:
    near, far = socket.socketpair()
    with near, far, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        server_guard.scan_sockets(6.0, set())
        assert not any(one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) for one in (near, far, datagrams))


def test_the_seconds_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOPSML_KEEPALIVE_S", raising=False)
    assert SETTINGS.keepalive_s == 15.0
    monkeypatch.setenv("HOPSML_KEEPALIVE_S", "-1")
    with pytest.raises(ArgumentError, match=r"HOPSML_KEEPALIVE_S='-1'.*or 0 to set no keepalive"):
        _ = SETTINGS.keepalive_s
