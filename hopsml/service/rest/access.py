"""Who may look: whoever knows the token, which the address that is printed bears; a cookie then keeps it.

Every answer forbids the browser what the page does not need: scripts and styles from elsewhere or within the page, frames.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

QUERY = "token"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_REFUSED = (
    b'{"error":"this address needs the token of this `hopsml ui`",'
    b'"remedy":"open the address that `hopsml ui` has printed, with ?token= in it"}'
)


def new_token() -> str:
    """A token that nobody guesses."""
    return secrets.token_urlsafe(24)


class Guarded:
    """An application behind a token, with the headers that each of its answers bears."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._token = app, token
        # Cookies do not know of ports: two servers of one host must not overwrite each other's.
        self._cookie = "hopsml_ui_" + hashlib.sha256(token.encode()).hexdigest()[:12]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        asked = next((value for name, value in query if name == QUERY), None)
        if asked is not None and self._is_right(asked) and scope["method"] == "GET":
            await self._welcome(scope, [pair for pair in query if pair[0] != QUERY], sending)
        elif self._knows(Headers(scope=scope)):
            await self._app(scope, receive, sending)
        else:
            await _answer(sending, 401, [(b"content-type", b"application/json")], _REFUSED)

    async def _welcome(self, scope: Scope, rest: list[tuple[str, str]], send: Send) -> None:
        """Keep the token in a cookie, and out of the address, where it could be read over a shoulder."""
        target = "./" + scope["path"].rpartition("/")[2] + ("?" + urlencode(rest) if rest else "")
        cookie = f"{self._cookie}={self._token}; Path=/; HttpOnly; SameSite=Strict"
        headers = [(b"location", target.encode()), (b"set-cookie", cookie.encode()), (b"cache-control", b"no-store")]
        await _answer(send, 303, headers, b"")

    def _knows(self, headers: Headers) -> bool:
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._is_right(bearer):
            return True
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            return False
        return cookie is not None and self._is_right(cookie.value)

    def _is_right(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())


async def _answer(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})
