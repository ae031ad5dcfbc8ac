"""Authentication of HTTP requests by a token, which the printed URL contains and a cookie then stores.

Security headers of every response forbid what the page does not need: foreign or inline scripts and styles, and frames.
"""

from __future__ import annotations

import hashlib
import hmac
import html
import secrets
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders

from hopsml.cluster.shared.http_connections import admit_authenticated
from hopsml.errors import StoreError
from hopsml.service.rest.errors import answer_of
from hopsml.service.rest.threads import AUTHENTICATION

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


MOST_VALUES = 8  # of one cookie


def session_cookie(server: str) -> str:
    """Return the name of a server's session cookie, which differs by server, as cookies do not distinguish ports."""
    return "hopsml_ui_" + hashlib.sha256(server.encode()).hexdigest()[:12]


def cookie_header(
    name: str, value: str, scope: Scope, *, site: str = "Strict", lasts_s: int | None = None
) -> tuple[bytes, bytes]:
    """Return the response header that sets a cookie.

    Args:
        name: Name of the cookie.
        value: Its value.
        scope: ASGI scope of the request.
        site: Value of ``SameSite``.
        lasts_s: Lifetime in seconds; None until the browser ends, 0 to delete the cookie.
    """
    age = "" if lasts_s is None else f"; Max-Age={lasts_s}"
    secure = "; Secure" if scope.get("scheme") == "https" else ""
    return b"set-cookie", f"{_full(name, scope)}={value}; Path=/; HttpOnly; SameSite={site}{age}{secure}".encode()


def cookie_values(headers: Headers, name: str, scope: Scope) -> list[str]:
    """Return the different values that a browser sends for a cookie, at most ``MOST_VALUES``.

    If there are several, another server has set some of them. Cookies of other names are ignored, whatever they
    contain.
    """
    wanted = _full(name, scope)
    pairs = (pair.strip().partition("=") for line in headers.getlist("cookie") for pair in line.split(";"))
    return list(dict.fromkeys(value for key, _, value in pairs if key == wanted and value))[:MOST_VALUES]


def _full(name: str, scope: Scope) -> str:
    """Return the cookie's name, with the prefix ``__Host-`` over TLS."""
    return f"__Host-{name}" if scope.get("scheme") == "https" else name


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
    b'{"error":"this address needs a token that is valid",'
    b'"remedy":"in a browser open the whole address that `hopsml ui` or `hopsml server` has printed; for a command set '
    b'HOPSML_TOKEN to a token that is neither expired nor revoked; a program sends it as bearer token"}'
)
_UNSIGNED = (
    b'{"error":"this address needs a token that is valid",'
    b'"remedy":"in a browser open the page at its root and sign in; for a command set HOPSML_TOKEN to a token '
    b'that is neither expired nor revoked; a program sends it as bearer token"}'
)

_ELSEWHERE = (
    b'{"error":"another page has sent this in the name of whoever looks at it",'
    b'"remedy":"change things on this server\'s own page, or by a command with a token"}'
)

_CROWDED = (
    b'{"error":"there are too many connections of yours",'
    b'"remedy":"close some of them, such as tabs and programs that follow jobs, or use one for several calls"}'
)
_CROWDED_HEADERS = [(b"content-type", b"application/json"), (b"connection", b"close"), (b"retry-after", b"5")]


def _is_of_another_page(method: str, headers: Headers) -> bool:
    """Return True if a browser reports that a page of another origin changes something.

    Another port of this host is another origin, too. Requests with a bearer token are accepted, as browsers add cookies
    by themselves, but never a header Authorization with a bearer token.
    """
    if method in ("GET", "HEAD", "OPTIONS") or _bearer(headers) is not None:
        return False
    if site := headers.get("sec-fetch-site"):
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is not None and urlsplit(origin).netloc != headers.get("host")


def _bearer(headers: Headers) -> str | None:
    """Return the bearer token of the header Authorization.

    None without a header, or with another scheme, such as Basic.
    """
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token if scheme.lower() == "bearer" else None


def new_token() -> str:
    """Return a new random token that cannot be guessed."""
    return secrets.token_urlsafe(24)


def redirect_page(target: str) -> str:
    """Return a page that makes a browser open an address, without naming the page to that server."""
    quoted = html.escape(target)
    return (
        '<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer">'
        f'<meta http-equiv="refresh" content="0; url={quoted}"><a href="{quoted}">Go on</a>'
    )


# Returns the owner of a token, as any true value, which is stored in ``request.state.caller``; None for an invalid
# token.
Identify = Callable[[str], object | None]

# Returns True while the token of a long request is valid and its owner has the same role; stored in
# ``request.state.is_still_known``.
IsStillKnown = Callable[[], Awaitable[bool]]

# Answers a request without a valid token, and returns whether it has.
Refuse = Callable[["Scope", "Send"], Awaitable[bool]]

# Answers requests of sign-in and sign-out, given the token of the request, and returns whether it has.
Door = Callable[["Scope", "Send", str], Awaitable[bool]]


def single_token_check(token: str) -> Identify:
    """Return a function that accepts a single token, for a server without users."""
    return lambda given: True if hmac.compare_digest(given.encode(), token.encode()) else None


class TokenMiddleware:
    """Middleware that authenticates requests by token, and adds security headers to all responses."""

    def __init__(
        self, app: ASGIApp, identify: Identify, name: str, refuse: Refuse | None = None, door: Door | None = None
    ) -> None:
        """Initialize the middleware.

        Args:
            app: The application behind it.
            identify: Returns the owner of a token.
            name: Name of this server, for its cookie.
            refuse: Answers requests without a valid token that are too frequent, or that must be directed to sign-in.
            door: Answers requests of sign-in and sign-out.
        """
        self._app, self._identify, self._refuse, self._door = app, identify, refuse, door
        self._cookie, self._refusal = session_cookie(name), _REFUSED if door is None else _UNSIGNED

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self._let_in(scope, receive, sending)
        # the token's owner cannot be looked up now; errors of the application itself are answered there
        except StoreError as error:
            await answer_of(error)(scope, receive, sending)

    async def _let_in(self, scope: Scope, receive: Receive, sending: Send) -> None:
        """Authenticate a request by the token of its URL, header or cookie, and answer it."""
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        asked = next((value for name, value in query if name == QUERY), None)
        headers = Headers(scope=scope)
        if asked is not None and scope["method"] == "GET" and (found := await self._caller(asked)) is not None:
            # the browser sends no cookie with a link from another site
            if headers.get("sec-fetch-site") in ("cross-site", "same-site"):
                await self._come_again(scope, sending)
                return
            kept = await self._session(scope)
            if await self._caller(kept) not in (None, found):
                asked = kept  # a link with another user's token must not make this browser act as that user
            await self._welcome(scope, asked, [pair for pair in query if pair[0] != QUERY], sending)
        elif _is_of_another_page(scope["method"], headers):
            await _answer(sending, 403, [(b"content-type", b"application/json")], _ELSEWHERE)
        else:
            await self._answer_to(await self._given(scope), scope, receive, sending)

    async def _answer_to(self, token: str, scope: Scope, receive: Receive, sending: Send) -> None:
        """Answer a request with this token, which is empty if the request has none."""
        if self._door is not None and await self._door(scope, sending, token):
            pass
        elif (caller := await self._caller(token)) is not None:
            if not admit_authenticated(scope, getattr(caller, "user", "")):
                # refusals of many connections are not recorded in the audit log
                scope.setdefault("state", {})["is_repeated"] = True
                await _answer(sending, 429, _CROWDED_HEADERS, _CROWDED)
                return
            scope.setdefault("state", {}).update(caller=caller, is_still_known=self._is_still(token, caller))
            await self._app(scope, receive, sending)
        elif self._refuse is None or not await self._refuse(scope, sending):
            await _answer(sending, 401, [(b"content-type", b"application/json")], self._refusal)

    async def _caller(self, token: str) -> object | None:
        """Return the owner of a token; None if it is empty or invalid."""
        return await AUTHENTICATION.run(self._identify, token) if token else None

    def _is_still(self, token: str, caller: object) -> IsStillKnown:
        """Return a function that checks again whether a token is valid for the same caller."""

        async def is_still_known() -> bool:
            return await self._caller(token) == caller

        return is_still_known

    async def _come_again(self, scope: Scope, send: Send) -> None:
        """Send a page that makes the browser repeat the request from this server, with its cookie if it has one."""
        target = "./" + quote(scope["path"].rpartition("/")[2]) + "?" + scope["query_string"].decode("latin-1")
        headers = [(b"content-type", b"text/html; charset=utf-8"), (b"cache-control", b"no-store")]
        await _answer(send, 200, headers, redirect_page(target).encode())

    async def _welcome(self, scope: Scope, token: str, rest: list[tuple[str, str]], send: Send) -> None:
        """Store the token in a cookie, and redirect to an address without it.

        Addresses are visible on the screen.
        """
        target = "./" + quote(scope["path"].rpartition("/")[2]) + ("?" + urlencode(rest) if rest else "")
        kept = cookie_header(self._cookie, token, scope)
        headers = [(b"location", target.encode()), kept, (b"cache-control", b"no-store")]
        await _answer(send, 303, headers, b"")

    async def _session(self, scope: Scope) -> str:
        """Return the token of the session's cookie: of several the valid one; "" if they belong to different users."""
        found = cookie_values(Headers(scope=scope), self._cookie, scope)
        if len(found) <= 1:
            return "".join(found)
        callers = {token: caller for token in found if (caller := await self._caller(token)) is not None}
        return next(iter(callers), "") if len(set(callers.values())) == 1 else ""

    async def _given(self, scope: Scope) -> str:
        """Return the token of a request, from its header or its cookie; "" if it has none."""
        bearer = _bearer(Headers(scope=scope))
        return bearer if bearer is not None else await self._session(scope)


async def _answer(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    """Send a complete response."""
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})
