"""Who may look: whoever knows the token, which the address that is printed bears; a cookie then keeps it.

Every answer forbids the browser what the page does not need: scripts and styles from elsewhere or within the page, frames.
"""

from __future__ import annotations

import hmac
import html
import secrets
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders

from hopsml.cluster.shared.http_connections import recognise
from hopsml.errors import StoreError
from hopsml.service.rest import cookies
from hopsml.service.rest.errors import answer_of
from hopsml.service.rest.threads import AUTHENTICATION

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
    b'{"error":"this address needs a token that is valid",'
    b'"remedy":"in a browser open the whole address that `hopsml ui` or `hopsml server` has printed; for a command set '
    b'HOPSML_TOKEN; a program sends the header Authorization: Bearer and the token"}'
)
_UNSIGNED = (
    b'{"error":"this address needs a token that is valid",'
    b'"remedy":"in a browser open the page at its root and sign in; for a command set HOPSML_TOKEN; a program sends the '
    b'header Authorization: Bearer and the token"}'
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
    """Whether a browser says that a page of another origin changes something; another port of this host is one, too.

    What sends a token of its own is no page: browsers add cookies by themselves, and no header Authorization with a Bearer.
    """
    if method in ("GET", "HEAD", "OPTIONS") or _bearer(headers) is not None:
        return False
    if site := headers.get("sec-fetch-site"):
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is not None and urlsplit(origin).netloc != headers.get("host")


def _bearer(headers: Headers) -> str | None:
    """The token of the header Authorization; None where it has none, but nothing or another scheme, such as Basic."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token if scheme.lower() == "bearer" else None


def new_token() -> str:
    """A token that nobody guesses."""
    return secrets.token_urlsafe(24)


# Whose token it is: anything that is true; what it is stands in ``request.state.caller``. None for nobody's.
Identify = Callable[[str], object | None]

# Whether the token of a request that goes on for long is still valid, and its owner's role the same:
# ``request.state.is_still_known``.
IsStillKnown = Callable[[], Awaitable[bool]]

# Answers a request of somebody unknown, and says whether it has.
Refuse = Callable[["Scope", "Send"], Awaitable[bool]]

# Answers where people sign in and out, given the token that a request bears, and says whether it has.
Door = Callable[["Scope", "Send", str], Awaitable[bool]]


def one_token(token: str) -> Identify:
    """Where there is one token, whoever has it may look."""
    return lambda given: True if hmac.compare_digest(given.encode(), token.encode()) else None


class Guarded:
    """An application behind tokens, with the headers that each of its answers bears."""

    def __init__(
        self, app: ASGIApp, identify: Identify, name: str, refuse: Refuse | None = None, door: Door | None = None
    ) -> None:
        """``name``: of this server, for its cookie.

        ``refuse``: answers who has no token that is valid, and comes too often, or is to be told where to sign in.
        """
        self._app, self._identify, self._refuse, self._door = app, identify, refuse, door
        self._cookie, self._refusal = cookies.session(name), _REFUSED if door is None else _UNSIGNED

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

        try:
            await self._let_in(scope, receive, sending)
        except StoreError as error:  # whose token it is cannot be said now; what comes from within is answered there
            await answer_of(error)(scope, receive, sending)

    async def _let_in(self, scope: Scope, receive: Receive, sending: Send) -> None:
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        asked = next((value for name, value in query if name == QUERY), None)
        headers = Headers(scope=scope)
        if asked is not None and scope["method"] == "GET" and (found := await self._caller(asked)) is not None:
            if headers.get("sec-fetch-site") in ("cross-site", "same-site"):  # a link there: no cookie comes with it
                await self._come_again(scope, sending)
                return
            kept = await self._session(scope)
            if await self._caller(kept) not in (None, found):
                asked = kept  # another user's link must not make this browser act as that user
            await self._welcome(scope, asked, [pair for pair in query if pair[0] != QUERY], sending)
        elif _is_of_another_page(scope["method"], headers):
            await _answer(sending, 403, [(b"content-type", b"application/json")], _ELSEWHERE)
        else:
            await self._answer_to(await self._given(scope), scope, receive, sending)

    async def _answer_to(self, token: str, scope: Scope, receive: Receive, sending: Send) -> None:
        """Answer a request that bears this token, or none."""
        if self._door is not None and await self._door(scope, sending, token):
            pass
        elif (caller := await self._caller(token)) is not None:
            if not recognise(scope, getattr(caller, "user", "")):
                scope.setdefault("state", {})["is_repeated"] = True  # no change of a crowd belongs into the audit log
                await _answer(sending, 429, _CROWDED_HEADERS, _CROWDED)
                return
            scope.setdefault("state", {}).update(caller=caller, is_still_known=self._is_still(token, caller))
            await self._app(scope, receive, sending)
        elif self._refuse is None or not await self._refuse(scope, sending):
            await _answer(sending, 401, [(b"content-type", b"application/json")], self._refusal)

    async def _caller(self, token: str) -> object | None:
        return await AUTHENTICATION.run(self._identify, token) if token else None

    def _is_still(self, token: str, caller: object) -> IsStillKnown:
        async def is_still_known() -> bool:
            return await self._caller(token) == caller

        return is_still_known

    async def _come_again(self, scope: Scope, send: Send) -> None:
        """Have the browser ask once more, from a page of this server: then it sends the cookie that it may have."""
        target = html.escape(
            "./" + quote(scope["path"].rpartition("/")[2]) + "?" + scope["query_string"].decode("latin-1")
        )
        page = f'<!doctype html><meta http-equiv="refresh" content="0; url={target}"><a href="{target}">Go on</a>'
        headers = [(b"content-type", b"text/html; charset=utf-8"), (b"cache-control", b"no-store")]
        await _answer(send, 200, headers, page.encode())

    async def _welcome(self, scope: Scope, token: str, rest: list[tuple[str, str]], send: Send) -> None:
        """Keep the token in a cookie, and out of the address, where it could be read over a shoulder."""
        target = "./" + quote(scope["path"].rpartition("/")[2]) + ("?" + urlencode(rest) if rest else "")
        kept = cookies.header(self._cookie, token, scope)
        headers = [(b"location", target.encode()), kept, (b"cache-control", b"no-store")]
        await _answer(send, 303, headers, b"")

    async def _session(self, scope: Scope) -> str:
        """The token of the cookie: of several the valid one; "" where they are of different users."""
        found = cookies.values(Headers(scope=scope), self._cookie, scope)
        if len(found) <= 1:
            return "".join(found)
        callers = {token: caller for token in found if (caller := await self._caller(token)) is not None}
        return next(iter(callers), "") if len(set(callers.values())) == 1 else ""

    async def _given(self, scope: Scope) -> str:
        bearer = _bearer(Headers(scope=scope))
        return bearer if bearer is not None else await self._session(scope)


async def _answer(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})
