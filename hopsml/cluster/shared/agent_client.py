"""Agent's side of its connection: a WebSocket with TLS and a token, to the coordinator or to the driver of a serving."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

CONNECT_TIMEOUT_S = 10.0
# per address: the server may be busy admitting a thousand agents and rejecting unauthenticated peers
CONNECT_TRIES = 2


async def connect(
    addresses: Sequence[tuple[str, int]],
    token: str,
    certificate: str,
    max_size: int,
    connection_class: type[ClientConnection] | None = None,
) -> ClientConnection:
    """Connect to the first address that answers.

    Args:
        addresses: Host and port of each address of the server, tried in this order.
        token: Token of the agents.
        certificate: The only trusted certificate, in PEM format.
        max_size: Largest size of a received message in bytes.
        connection_class: Class of the connection; None for that of ``websockets``.

    Raises:
        ConnectionError: No address answers.
        websockets.exceptions.InvalidHandshake: The server refuses the token.
    """
    from websockets.asyncio.client import connect as connect_websocket
    from websockets.exceptions import InvalidMessage

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the certificate itself is pinned
    context.load_verify_locations(cadata=certificate)
    problems = []
    for host, port in [*addresses] * CONNECT_TRIES:
        url_host = f"[{host}]" if ":" in host else host
        try:
            return await connect_websocket(
                f"wss://{url_host}:{port}/",
                ssl=context,
                additional_headers={"Authorization": f"Bearer {token}"},
                compression=None,
                max_size=max_size,
                create_connection=connection_class,
                ping_interval=None,
                open_timeout=CONNECT_TIMEOUT_S,
                proxy=None,
            )
        except (OSError, InvalidMessage) as error:  # InvalidMessage: disconnected during the handshake
            problems.append(f"{host}:{port}: {error}")
    raise ConnectionError(f"no address of the coordinator answers: {'; '.join(problems)}")
