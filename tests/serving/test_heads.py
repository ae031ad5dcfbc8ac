"""A connection on which no request comes about is closed, one that is used is not; over sockets, with uvicorn."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
import uvicorn

from hopsml.serving.heads import KEEP_ALIVE_S, HeadWatch

pytestmark = pytest.mark.fast


async def _answering(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


async def _play() -> tuple[bytes, bytes, bytes]:
    """What half a head, a used connection and a request under way get to read."""
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
    watch = HeadWatch()
    watch.look(server.server_state.connections, 0.0)
    used_out.write(b"GET / HTTP/1.1\r\n\r\n")
    await used.readuntil(b"\r\n\r\n")
    watch.look(server.server_state.connections, KEEP_ALIVE_S)
    ended = await asyncio.wait_for(half.read(), 60)
    for out, rest in ((used_out, b"GET / HTTP/1.1\r\n\r\n"), (long_out, b"2")):
        out.write(rest)
    answers = [await asyncio.wait_for(one.readuntil(b"\r\n\r\n"), 60) for one in (used, long)]
    for _, out in streams:
        out.close()
    server.should_exit = True
    await serving
    return ended, answers[0], answers[1]


def test_who_never_sends_a_whole_head_is_let_go() -> None:
    ended, used, long = asyncio.run(_play())
    assert ended == b""
    assert used.startswith(b"HTTP/1.1 200") and long.startswith(b"HTTP/1.1 200")
