"""Agent without processes: a WebSocket client with the agents' protocol, for tests and benchmarks of the coordinator."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from hopsml.cluster.shared import protocol


def client_tls(certificate: str) -> ssl.SSLContext:
    """Return a TLS context that trusts only this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cadata=certificate)
    return context


@asynccontextmanager
async def connected(
    address: tuple[str, int], certificate: str, token: str | None, context: ssl.SSLContext | None = None
) -> AsyncIterator[ClientConnection]:
    """Connect as an agent does, with any token or none, and yield the connection."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with connect(
        f"wss://{address[0]}:{address[1]}/",
        ssl=context or client_tls(certificate),
        additional_headers=headers,
        compression=None,
        max_size=protocol.MAX_TO_AGENT,
        ping_interval=None,
        proxy=None,
        open_timeout=30,
    ) as connection:
        yield connection


def hello(request_id: int, index: int, **other: Any) -> protocol.Hello:
    """Return the first message of an agent on a separate host."""
    facts: dict[str, Any] = {
        "version": protocol.VERSION, "host": f"10.{request_id % 250}.{index // 250}.{index % 250 + 1}", "port": 2222,
        "collective_port": 2223, "hostname": f"node{request_id}-{index}", "executor_id": f"e{request_id}-{index}", "pid": 1,
    }  # fmt: skip
    return protocol.Hello(request_id=request_id, index=index, **{**facts, **other})
