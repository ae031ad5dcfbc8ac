"""First steps for each request: check its token, and read its body."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from hopsml.serving.refusals import RequestRefused, bad_request

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_MOST_DISCARDED = 1 << 30  # bytes of an oversized body


def check_token(name: str, token: str, headers: Mapping[bytes, bytes]) -> None:
    """Check the token of a request; an empty ``token`` means that none is required.

    Raises:
        RequestRefused: (401) The request has no token or a wrong one.
    """
    if token and not hmac.compare_digest(headers.get(b"authorization", b""), f"Bearer {token}".encode()):
        raise RequestRefused(
            401,
            "the request bears no valid token: send the header 'Authorization: Bearer TOKEN'; `hopsml serve show "
            f"{name}` says where the token is kept",
            {"www-authenticate": "Bearer"},
        )


async def whole_body(most_bytes: int, headers: Mapping[bytes, bytes], receive: Receive) -> bytes:
    """Return the body of a request.

    The rest of an oversized body is read and discarded, because most clients read the answer only after sending
    everything. Clients that ask first (Expect: 100-continue) are refused at once.

    Args:
        most_bytes: Maximum size in bytes.
        headers: Headers of the request.
        receive: Receive function of ASGI.

    Raises:
        RequestRefused: (413) The body is too long; (400) the connection ended.
    """
    said = headers.get(b"content-length", b"")
    parts: list[bytes] = []
    length = int(said) if said.isdigit() else 0
    if length > most_bytes:
        if headers.get(b"expect", b"").lower() != b"100-continue" and length <= _MOST_DISCARDED:
            await _discard(receive)
        raise _too_long(most_bytes)
    length = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise bad_request("the connection ended before the body did")
        part = message.get("body", b"")
        length += len(part)
        if length > most_bytes:
            parts.clear()
            await _discard(receive)
            raise _too_long(most_bytes)
        parts.append(part)
        if not message.get("more_body"):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_long(most_bytes: int) -> RequestRefused:
    """Return the error for an oversized body."""
    return RequestRefused(
        413, f"a request may have {most_bytes} bytes; send fewer rows at once, or start with max_body_mb="
    )


async def _discard(receive: Receive) -> None:
    """Discard the rest of a body, up to a limit."""
    left = _MOST_DISCARDED
    while left > 0:
        message = await receive()
        left -= len(message.get("body", b""))
        if not message.get("more_body"):
            return
