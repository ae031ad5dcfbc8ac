"""Tests of reserved ports and reachable addresses, with real sockets on loopback."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopsml.cluster.agent import network
from hopsml.cluster.agent.network import (
    HeldPort,
    hold_port,
    local_addresses,
)
from hopsml.errors import ArgumentError, RunError

pytestmark = pytest.mark.fast

ROOT = Path(__file__).parents[3]
HAS_IPV6 = "::1" in local_addresses()  # containers may lack it
LOOPBACKS = ["127.0.0.1", *(["::1"] if HAS_IPV6 else [])]
HOSTS = [*LOOPBACKS, ""]
needs_ipv6 = pytest.mark.skipif(not HAS_IPV6, reason="this machine has no IPv6")

# A server in another process: binds the port, with or without SO_REUSEPORT, answers one connection, ends.
SERVER = """
import socket, sys
host, port, shared = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "shared"
server = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
server.settimeout(30)
if shared:
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
try:
    server.bind((host, port))
except OSError as error:
    print("refused", error.errno, flush=True)
    sys.exit()
server.listen()
print("listening", flush=True)
server.accept()[0].sendall(b"hello")
"""

HOLDER = """
import sys
from hopsml.cluster.agent.network import hold_port
held = hold_port("127.0.0.1", (int(sys.argv[1]), int(sys.argv[2])))
print(held.port, flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def process(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        text=True,
    )
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


def first_line(of: subprocess.Popen[str]) -> str:
    assert of.stdout is not None
    return of.stdout.readline().strip()


@contextlib.contextmanager
def listener(host: str = "127.0.0.1", backlog: int = 8) -> Iterator[int]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as server:
        server.bind((host, 0))
        server.listen(backlog)
        yield server.getsockname()[1]


def free_range(count: int) -> tuple[int, int]:
    """Return a range of ``count`` consecutive ports that were free just now, below the kernel's ephemeral ports."""
    for first in range(20000 + os.getpid() % 5000, 32000, count):
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return first, first + count - 1
    raise AssertionError("no free ports in a row")


# -- held ports


@pytest.mark.parametrize("host", HOSTS)
def test_server_with_so_reuseport_can_bind_a_held_port(host: str) -> None:
    target = host or "127.0.0.1"
    with hold_port(host) as held, process(SERVER, target, held.port, "shared") as server:
        assert first_line(server) == "listening"
        with socket.create_connection((target, held.port), timeout=10) as connection:
            assert connection.recv(5) == b"hello"


@pytest.mark.parametrize("host", HOSTS)
def test_server_without_so_reuseport_is_refused_on_a_held_port(host: str) -> None:
    with hold_port(host) as held, process(SERVER, host or "127.0.0.1", held.port, "alone") as server:
        assert first_line(server) == f"refused {errno.EADDRINUSE}"


@pytest.mark.parametrize("host", LOOPBACKS)
def test_held_port_refuses_connections(host: str) -> None:
    """A process that waits for the leader's port must wait for the server, not for the holder."""
    with hold_port(host) as held, pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, held.port), timeout=10)


def test_every_connection_reaches_the_server_on_a_held_port() -> None:
    with hold_port("127.0.0.1") as held, socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        server.bind(("127.0.0.1", held.port))
        server.listen(64)
        for _ in range(64):
            socket.create_connection(("127.0.0.1", held.port), timeout=10).close()


def test_closed_port_is_free_again() -> None:
    held = hold_port("127.0.0.1")
    held.close()
    held.close()
    with socket.socket() as server:
        server.bind(("127.0.0.1", held.port))


def test_sigkill_of_the_holder_releases_the_port() -> None:
    first, last = free_range(1)
    with process(HOLDER, first, first) as holder:
        assert first_line(holder) == str(first)
        with pytest.raises(RunError):
            hold_port("127.0.0.1", (first, last))
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        hold_port("127.0.0.1", (first, last)).close()


# -- port ranges


def test_exhausted_port_range_is_refused() -> None:
    first, last = free_range(4)
    with contextlib.ExitStack() as stack:
        held: list[HeldPort] = [stack.enter_context(hold_port("127.0.0.1", (first, last))) for _ in range(4)]
        assert sorted(port.port for port in held) == list(range(first, last + 1))
        with pytest.raises(RunError, match=f"no port of HOPSML_PORT_RANGE={first}-{last} is free on 127.0.0.1"):
            hold_port("127.0.0.1", (first, last))
        with pytest.raises(RunError):  # of all addresses it is not free either
            hold_port("", (first, last))


def test_two_agents_never_hold_the_same_port() -> None:
    """Both set SO_REUSEPORT, for one user: were it set before the bind, the kernel would let them share."""
    first, _ = free_range(1)
    with process(HOLDER, first, first) as holder:
        assert first_line(holder) == str(first)
        with pytest.raises(RunError, match="ss -tlnp"):
            hold_port("127.0.0.1", (first, first))


def shared_server(port: int) -> socket.socket:
    """As TensorFlow's: of the same user, with SO_REUSEPORT."""
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    server.bind(("127.0.0.1", port))
    server.listen()
    return server


def leave_ended_connections(port: int) -> None:
    """The server ends first, as a killed worker does: the kernel keeps the connection on its side."""
    with shared_server(port) as server, socket.create_connection(("127.0.0.1", port)) as client:
        accepted, _ = server.accept()
        accepted.close()
        server.close()
        assert client.recv(1) == b""


def test_ended_connections_do_not_occupy_a_port() -> None:
    """The next generation on a narrow range: the kernel remembers the last one's connections for 60 s."""
    first, _ = free_range(1)
    leave_ended_connections(first)
    with pytest.raises(OSError, match="in use"), socket.socket() as plain:
        plain.bind(("127.0.0.1", first))
    for _ in range(2):
        with hold_port("127.0.0.1", (first, first)) as held, process(HOLDER, first, first) as other:
            assert held.port == first
            assert first_line(other) == ""  # refused
            with shared_server(first):
                socket.create_connection(("127.0.0.1", first), timeout=10).close()


def test_agents_that_start_simultaneously_get_different_ports() -> None:
    first, last = free_range(4)
    for port in range(first, last + 1):
        leave_ended_connections(port)
    with contextlib.ExitStack() as stack:
        holders = [stack.enter_context(process(HOLDER, first, last)) for _ in range(4)]
        assert sorted(map(first_line, holders)) == [str(port) for port in range(first, last + 1)]


def test_port_of_a_server_cannot_be_held_after_its_holder_closed() -> None:
    first, _ = free_range(1)
    held = hold_port("127.0.0.1", (first, first))
    with shared_server(first):
        held.close()
        with pytest.raises(RunError, match="is free"):
            hold_port("127.0.0.1", (first, first))


@pytest.mark.parametrize("port_range", [(0, 10), (10, 9), (65535, 65536), (-1, 5)])
def test_invalid_port_ranges_are_refused(port_range: tuple[int, int]) -> None:
    with pytest.raises(ArgumentError, match="port_range="):
        hold_port("127.0.0.1", port_range)


@pytest.mark.parametrize("host", ["192.0.2.77", "2001:db8::77", "no such host"])
def test_addresses_of_other_machines_cannot_be_held(host: str) -> None:
    with pytest.raises(ArgumentError, match=r"use an address of this machine.*127\.0\.0\.1"):
        hold_port(host)


# -- addresses


def test_local_addresses_end_with_loopback() -> None:
    addresses = local_addresses()
    assert len(set(addresses)) == len(addresses)
    loopback = [address for address in addresses if address in ("127.0.0.1", "::1")]
    assert "127.0.0.1" in loopback
    assert list(addresses[-len(loopback) :]) == loopback
    assert not any(address.startswith("fe80") for address in addresses)
    for address in addresses:  # each one is ours: it can be bound
        hold_port(address).close()


def test_hold_port_leaves_no_socket_open() -> None:
    before = set(os.listdir("/proc/self/fd"))
    with contextlib.suppress(ArgumentError):
        hold_port("192.0.2.77")
    network.hold_port().close()
    assert set(os.listdir("/proc/self/fd")) == before
