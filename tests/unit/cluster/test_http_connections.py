"""Tests of uvicorn's connections: those without a complete request, and many without a token."""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from hopsml.cluster.agent import agent
from hopsml.cluster.shared import acceptor
from hopsml.cluster.shared.acceptor import ConnectionLimits
from hopsml.cluster.shared.http_connections import KEEP_ALIVE_S, IdleConnectionCloser, accepting, admit_authenticated
from hopsml.cluster.shared.tls import make_identity
from tests.helpers.clock import END_S
from tests.helpers.cluster.simulated import client_tls
from tests.helpers.cluster.workloads import WAIT_S


def limit_open_files(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (number, number))


def test_open_files_needed_is_the_least_limit_that_suffices_for_all_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    for agents in (0, 1, 16, 17, 100, 1000, 5000):
        least = acceptor.open_files_needed(agents)
        limit_open_files(monkeypatch, least)
        assert (
            ConnectionLimits.of_this_process().descriptors >= agents + 20 and acceptor.open_files_problem(agents) == ""
        )
        limit_open_files(monkeypatch, least - 1)
        assert f"open {least - 1} files (ulimit -n), but " in acceptor.open_files_problem(agents)
        assert f"needs {least}; raise the limit (ulimit -n, LimitNOFILE)" in acceptor.open_files_problem(agents)
    limit_open_files(monkeypatch, resource.RLIM_INFINITY)
    assert acceptor.open_files_problem(100_000) == ""


def test_agent_refuses_to_start_with_too_few_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_open_files(monkeypatch, 32)
    reason = agent.run_agent(None, 0)  # type: ignore[arg-type]
    assert reason == f"{agent.NEVER_JOINED}{acceptor.open_files_problem()}" and "32 files" in reason


DRIVER = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
from hopsml import errors, experiment
try:
    experiment.submit(print, num_workers=1, progress=False, profile="local")
except errors.CoordinatorLost as error:
    print(error)
"""


def test_driver_refuses_to_start_with_too_few_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPSML_PROJECT_URL", tmp_path.as_uri())
    done = subprocess.run([sys.executable, "-c", DRIVER], capture_output=True, text=True, timeout=END_S, check=False)
    text = "this process can open 32 files (ulimit -n), but hopsml needs 64; raise the limit (ulimit -n, LimitNOFILE)\n"
    assert (done.stdout, done.returncode) == (text, 0), done.stderr


def test_tls_handshake_uses_version_1_3_and_sends_no_session_tickets() -> None:
    identity = make_identity()
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_tls(identity.certificate).wrap_bio(to_client, to_server)
    server = identity.context.wrap_bio(to_server, to_client, server_side=True)
    for side in (client, server):
        with pytest.raises(ssl.SSLWantReadError):
            side.do_handshake()
    client.do_handshake()
    server.do_handshake()
    server.write(b"welcome")
    assert client.read() == b"welcome"
    assert client.version() == "TLSv1.3" and client.session is not None and not client.session.has_ticket


pytestmark = pytest.mark.fast


async def _answering(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


async def _play() -> tuple[bytes, bytes, bytes]:
    """Return the answers to half a head, a used connection and a pending request."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(_answering, http="httptools", lifespan="off", log_config=None, timeout_keep_alive=600)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    streams = [await asyncio.open_connection(*listener.getsockname()) for _ in range(3)]
    (half, half_out), (used, used_out), (long, long_out) = streams
    half_out.write(b"GET / HTTP/1.1\r\nX")
    used_out.write(b"GET / HTTP/1.1\r\n\r\n")
    long_out.write(b"POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\n1")
    await used.readuntil(b"\r\n\r\n")
    while sum(one.cycle is not None for one in server.server_state.connections) < 2:
        await asyncio.sleep(0.001)
    watch = IdleConnectionCloser()
    watch.close_idle(server.server_state.connections, 0.0)
    used_out.write(b"GET / HTTP/1.1\r\n\r\n")
    await used.readuntil(b"\r\n\r\n")
    watch.close_idle(server.server_state.connections, KEEP_ALIVE_S)
    ended = await asyncio.wait_for(half.read(), 60)
    for out, rest in ((used_out, b"GET / HTTP/1.1\r\n\r\n"), (long_out, b"2")):
        out.write(rest)
    answers = [await asyncio.wait_for(one.readuntil(b"\r\n\r\n"), 60) for one in (used, long)]
    for _, out in streams:
        out.close()
    server.should_exit = True
    await serving
    return ended, answers[0], answers[1]


def test_idle_connection_without_a_complete_head_is_closed() -> None:
    ended, used, long = asyncio.run(_play())
    assert ended == b""
    assert used.startswith(b"HTTP/1.1 200") and long.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("http", ["httptools", "h11"])
def test_invalid_requests_are_logged_once(http: str, caplog: pytest.LogCaptureFixture) -> None:
    """They can be sent without a token."""
    upgrade = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"

    async def play() -> None:
        config = uvicorn.Config(_answering, http=http, lifespan="off", log_config=None, ws="none")  # type: ignore[arg-type]
        config.load()
        server, listener = uvicorn.Server(config), socket.create_server(("127.0.0.1", 0))
        serving = asyncio.create_task(server.serve(sockets=[]))
        while not server.started:
            await asyncio.sleep(0.001)
        async with accepting(server, listener):
            for sent in (b"x\r\n\r\n", upgrade) * 20:
                reader, writer = await asyncio.open_connection(*listener.getsockname())
                writer.write(sent)
                assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WAIT_S)
                writer.close()
        server.should_exit = True
        await serving

    asyncio.run(play())
    warnings = [
        record.getMessage()
        for record in caplog.records
        if record.name == "uvicorn.error" and record.levelname == "WARNING"
    ]
    assert len(warnings) == len(set(warnings)) and "Invalid HTTP request received." in warnings


async def _with_token(scope: Any, receive: Any, send: Any) -> None:
    is_known = (b"authorization", b"Bearer right") in scope["headers"]
    if is_known:
        admit_authenticated(scope)
    headers = [(b"content-length", b"0")]
    await send({"type": "http.response.start", "status": 200 if is_known else 401, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


@pytest.mark.parametrize("http", ["httptools", "h11"])
@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nX", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"])
def test_connections_without_a_token_do_not_block_those_with_one(
    http: Any, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other connections send nothing, half a head or refused requests, and stay open."""
    monkeypatch.setattr(acceptor, "PATIENCE", 1)
    limits = ConnectionLimits(pending=8, of_one_peer=6, descriptors=1 << 20)
    monkeypatch.setattr(ConnectionLimits, "of_this_process", lambda: limits)

    async def play() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        address = listener.getsockname()
        config = uvicorn.Config(_with_token, http=http, lifespan="off", log_config=None, timeout_keep_alive=600)
        config.load()
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[]))
        while not server.started:
            await asyncio.sleep(0.001)
        request = b"GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %s\r\n\r\n"
        async with accepting(server, listener):
            before, known = await asyncio.open_connection(*address)
            known.write(request % b"right")
            assert b" 200 " in await asyncio.wait_for(before.readuntil(b"\r\n\r\n"), WAIT_S)
            with ExitStack() as crowd:
                for _ in range(40):
                    crowd.enter_context(socket.create_connection(address)).sendall(sent)
                reader, writer = await asyncio.open_connection(*address)
                writer.write(request % b"right")
                assert b" 200 " in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WAIT_S)
                known.write(request % b"right")  # it was there before them, and is not cut off
                assert b" 200 " in await asyncio.wait_for(before.readuntil(b"\r\n\r\n"), WAIT_S)
                assert len(server.server_state.connections) <= limits.pending + 2
            for out in (writer, known):
                out.close()
            server.should_exit = True
            await serving
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address)

    asyncio.run(play())


@pytest.mark.parametrize("http", ["httptools", "h11"])
def test_endless_request_head_ends_the_connection(http: Any) -> None:
    """Of a first request, after an unread body, and after a chunked body."""

    async def lines(writer: asyncio.StreamWriter) -> None:
        for number in range(1024):
            writer.write(b"A%d: %s\r\n" % (number, b"a" * (1 << 16)))
            await writer.drain()

    async def play(begin: bytes) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(_with_token, http=http, lifespan="off", log_config=None)
        config.load()
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[]))
        while not server.started:
            await asyncio.sleep(0.001)
        async with accepting(server, listener):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            writer.write(begin)
            with pytest.raises(ConnectionError):
                await lines(writer)
            writer.close()
            server.should_exit = True
            await serving

    head, post = b"GET / HTTP/1.1\r\nHost: a\r\n", b"POST / HTTP/1.1\r\nHost: a\r\n"
    pieces = b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"
    for begin in (head, post + b"Content-Length: 1\r\n\r\nx" + head, post + pieces):
        asyncio.run(play(begin))
