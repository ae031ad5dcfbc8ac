"""Tests of crowds of silent connections: limits, reserved descriptors, and a run that ends correctly."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import ssl
import subprocess
import sys
import textwrap
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from hopsml.cluster.shared import acceptor
from hopsml.cluster.shared.acceptor import PATIENCE, Acceptor, ConnectionLimits, Pending, pending_to_close, with_streams
from hopsml.cluster.shared.tls import make_identity
from hopsml.experiment import applications
from tests.helpers.clock import END_S
from tests.helpers.cluster.backend_contract import submit
from tests.helpers.cluster.simulated import client_tls
from tests.helpers.cluster.workloads import WAIT_S
from tests.helpers.operations import operations

pytestmark = pytest.mark.local


@contextmanager
def pending(*of: tuple[str, int]) -> Iterator[list[Pending]]:
    """Yield pending connections of these addresses with these numbers of checks."""
    found = [Pending(socket.socket(), peer, lambda: None, looks=looks) for peer, looks in of]
    try:
        yield found
    finally:
        for each in found:
            each.connection.close()


def test_excess_connection_to_close_is_the_oldest_of_the_busiest_address() -> None:
    limits = ConnectionLimits(pending=4, of_one_peer=2, descriptors=100)
    with pending(("a", PATIENCE), ("b", PATIENCE), ("c", PATIENCE)) as few:
        assert pending_to_close(few, limits) is None
    with pending(("b", PATIENCE), ("a", PATIENCE), ("a", PATIENCE), ("a", 0)) as many:
        assert pending_to_close(many, limits) is many[1]  # of the address with most of them the oldest
        many[1].cut()
        assert pending_to_close(many, limits) is None  # there is room, and no address has too many
    with pending(("a", PATIENCE - 1), ("a", PATIENCE - 1), ("a", PATIENCE - 1)) as young:
        assert pending_to_close(young, limits) is None  # they may be about to show the token
        young[2].looks += 1
        assert pending_to_close(young, limits) is young[2]  # too many of one address, though there is room
    assert pending_to_close([], limits) is None


def test_cost_per_connection_is_constant_for_a_group_on_one_host() -> None:
    limits = ConnectionLimits(pending=64, of_one_peer=48, descriptors=100)
    with pending(*[("a", 0)] * 48) as many:
        assert operations(lambda: pending_to_close(many, limits)) < 1.5 * operations(
            lambda: pending_to_close(many[:1], limits)
        )


@pytest.mark.parametrize(
    ("open_files", "expected"),
    [
        (256, ConnectionLimits(64, 48, 224)),
        (1024, ConnectionLimits(256, 192, 896)),
        (1 << 20, ConnectionLimits(2048, 1536, (1 << 20) - 256)),
        (resource.RLIM_INFINITY, ConnectionLimits(2048, 1536, (1 << 20) - 256)),
    ],
)
def test_connection_limits_follow_from_the_open_file_limit(
    open_files: int, expected: ConnectionLimits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (open_files, open_files))
    assert ConnectionLimits.of_this_process() == expected


def test_authenticated_connection_succeeds_among_many_idle_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor, "PATIENCE", 1)
    refused: list[str] = []

    async def serve(pending: Pending, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.read(5) == b"token":
            pending.release()
            writer.write(b"welcome")
        writer.close()

    async def crowd() -> None:
        opened = len(os.listdir("/proc/self/fd"))
        one = Acceptor(with_streams(serve), None, lambda kind, text: refused.append(kind))
        one.limits = ConnectionLimits(8, 4, 1 << 20)
        port = await one.open("127.0.0.1")
        with ExitStack() as idle:
            for _ in range(40):
                idle.enter_context(socket.create_connection(("127.0.0.1", port)))
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"token")
            assert await asyncio.wait_for(reader.read(), WAIT_S) == b"welcome"
            writer.close()
            assert len(one._pending) <= 8
        one.close()
        await one.wait_closed()
        deadline = time.monotonic() + WAIT_S
        while len(os.listdir("/proc/self/fd")) > opened and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        assert len(os.listdir("/proc/self/fd")) <= opened

    asyncio.run(crowd())
    assert set(refused) == {"crowd"}


def test_refused_peer_that_does_not_close_tls_occupies_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing TLS waits for the peer's close message; a refused connection must not occupy a place during that time."""
    identity = make_identity()

    async def serve(pending: Pending, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(5)
        writer.close()

    def until_the_end(port: int) -> None:
        plain = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
        stranger = client_tls(identity.certificate).wrap_socket(plain)
        stranger.sendall(b"wrong")
        with socket.socket(fileno=stranger.detach()) as deaf, suppress(ConnectionResetError):
            deaf.settimeout(WAIT_S)
            while deaf.recv(1 << 10):
                pass

    async def refused() -> None:
        one = Acceptor(with_streams(serve), identity.context)
        await asyncio.to_thread(until_the_end, await one.open("127.0.0.1"))
        one.close()
        await one.wait_closed()

    monkeypatch.setattr("asyncio.constants.SSL_SHUTDOWN_TIMEOUT", 10 * WAIT_S)
    monkeypatch.setattr(acceptor, "SHOW_S", 10 * WAIT_S)
    asyncio.run(refused())


def test_connections_open_at_the_end_of_the_loop_cause_no_error_output() -> None:
    shown: list[object] = []

    async def serve(pending: Pending, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.set()
        await reader.read()

    async def end_with_an_open_connection() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: shown.append(context))
        one = Acceptor(with_streams(serve))
        port = await one.open("127.0.0.1")
        connection.connect(("127.0.0.1", port))
        await asyncio.wait_for(served.wait(), WAIT_S)

    served = asyncio.Event()
    with socket.socket() as connection:
        asyncio.run(end_with_an_open_connection())
    assert shown == []


DRIVER = textwrap.dedent("""
    import resource, sys
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    from hopsml import experiment
    from hopsml.experiment import applications

    def train(folder):
        import time
        from pathlib import Path
        Path(folder, "there").touch()
        while not Path(folder, "go-on").exists():
            time.sleep(0.01)
        return 7

    run = experiment.submit(train, args={"folder": sys.argv[1]}, num_workers=1, progress=False)
    print(*applications.get_or_start().coordinator.addresses[0], flush=True)
    print(run.result(600).value, flush=True)
    print(experiment.submit(lambda: 8, num_workers=2, progress=False).result(600).value, flush=True)
    print(dict(applications.get_or_start().coordinator.door.refused), flush=True)
    experiment.shutdown()
""")


def test_run_with_few_descriptors_survives_a_thousand_idle_connections(store: Path, tmp_path: Path) -> None:
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]
    )
    assert driver.stdout is not None
    with driver, driver.stdout, ExitStack() as idle:
        try:
            host, port = driver.stdout.readline().split()
            for number in range(1010):
                connection = idle.enter_context(socket.create_connection((host, int(port)), timeout=WAIT_S))
                if number < 100:  # more than may be strangers; the others do not even begin
                    connection.sendall(b"\x16")
            (tmp_path / "go-on").touch()
            # The second run's other agent connects while the idle connections are open.
            assert driver.stdout.readline() == "7\n"
            assert driver.stdout.readline() == "8\n"
            assert "crowd" in driver.stdout.readline()
            assert driver.wait(WAIT_S) == 0
        finally:
            driver.kill()


@pytest.mark.parametrize("second", ["right", "wrong"])
def test_two_authorization_headers_are_refused_like_a_wrong_token(store: Path, second: str) -> None:
    submit(lambda: None, 1, keep_warm=60).result(END_S)
    server = applications.get_or_start().coordinator.door
    address = applications.get_or_start().coordinator.addresses[0]
    tokens = (server.token, server.token if second == "right" else "w\xf6rong")
    request = "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    request += "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
    request += "".join(f"Authorization: Bearer {token}\r\n" for token in tokens) + "\r\n"
    tls: ssl.SSLContext = client_tls(server.identity.certificate)
    with socket.create_connection(address, timeout=WAIT_S) as raw, tls.wrap_socket(raw) as connection:
        connection.sendall(request.encode("latin-1"))
        answer = b""
        while piece := connection.recv(4096):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert dict(server.refused) == {"token": 1}


def test_peers_in_the_tls_handshake_take_little_memory() -> None:
    """asyncio allocates 256 KiB for each: half a gigabyte for as many as may be pending."""
    count, most = 40, 80 << 10

    async def serve() -> int:
        accepted = Acceptor(tls=make_identity().context)
        port = await accepted.open("127.0.0.1")
        with ExitStack() as peers:
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(count):
                peer = peers.enter_context(socket.create_connection(("127.0.0.1", port)))
                peer.sendall(b"\x16\x03\x01\x02\x00")  # the head of a record without its rest
            async with asyncio.timeout(WAIT_S):
                while len(accepted._pending) < count:
                    await asyncio.sleep(0.01)
            taken = tracemalloc.get_traced_memory()[0] - before
            accepted.close()
        await accepted.wait_closed()
        return taken

    tracemalloc.start()
    try:
        assert asyncio.run(serve()) < count * most
    finally:
        tracemalloc.stop()
