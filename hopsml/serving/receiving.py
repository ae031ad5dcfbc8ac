"""What is done with each request before anybody looks into it: its token is checked, its body is read."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from hopsml.serving.refusals import RequestRefused, bad_request

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_MOST_DISCARDED = 1 << 30  # bytes of a body that is too long


def check_token(name: str, token: str, headers: Mapping[bytes, bytes]) -> None:
    """RequestRefused (401) where a token is wanted, which is not empty then, and another or none is borne."""
    if token and not hmac.compare_digest(headers.get(b"authorization", b""), f"Bearer {token}".encode()):
        raise RequestRefused(
            401,
            "the request bears no valid token: send the header 'Authorization: Bearer TOKEN'; `hopsml serve show "
            f"{name}` says where the token is kept",
            {"www-authenticate": "Bearer"},
        )


async def whole_body(most_bytes: int, headers: Mapping[bytes, bytes], receive: Receive) -> bytes:
    """The body. RequestRefused (413) where it is too long.

    The rest of one is read and thrown away: most clients look for an answer only when they have sent all. Those that ask
    before they send (Expect: 100-continue) are told before.
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
    return RequestRefused(
        413, f"a request may have {most_bytes} bytes; send fewer rows at once, or start with max_body_mb="
    )


async def _discard(receive: Receive) -> None:
    """The rest of a body, up to a bound."""
    left = _MOST_DISCARDED
    while left > 0:
        message = await receive()
        left -= len(message.get("body", b""))
        if not message.get("more_body"):
            return
