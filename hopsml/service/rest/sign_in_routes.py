"""Routes of sign-in by a provider: redirect to the provider, return with a session cookie, and sign-out.

A browser that returns from the provider's site does not send the session cookie, by design: a page of this server
answers first, and continues to the root.
"""

from __future__ import annotations

import contextlib
import html
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from starlette.datastructures import Headers

from hopsml.errors import ArgumentError, HopsmlError
from hopsml.service.rest import access, page_files
from hopsml.service.rest.errors import split_message, status_of
from hopsml.service.rest.threads import AUTHENTICATION, SIGN_IN
from hopsml.service.sign_in import LASTS_S, PendingSignIn, Provider, Seal, caller_of_claims
from hopsml.service.store.accounts import SIGNED_IN, AuditEntry, Tokens, callback_to_store

if TYPE_CHECKING:
    from starlette.types import Scope, Send

    from hopsml.service.store import JobStore

THERE, BACK, OUT = "/sign-in", "/sign-in/back", "/sign-out"
_OPEN = ("/style.css", "/icon.svg")  # files that the pages of this module need
_HTML = (b"content-type", b"text/html; charset=utf-8")
_UNKEPT = (b"cache-control", b"no-store")
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">{more}<title>{title} · hopsml</title>
<link rel="icon" href="{root}icon.svg" type="image/svg+xml"><link rel="stylesheet" href="{root}style.css"></head>
<body><header class="top"><span class="brand">hopsml</span></header>
<main><h1>{title}</h1><p>{said}</p><p><a href="{root}{target}">{link}</a></p></main></body></html>
"""

TurnAway = Callable[["Scope", "Send"], Awaitable[bool]]


class SignInRoutes:
    """Routes of sign-in and sign-out, and sign-in page for unauthenticated browsers; other requests are left alone."""

    def __init__(self, provider: Provider, store: JobStore, name: str, turn_away: TurnAway) -> None:
        """Initialize the routes.

        Args:
            provider: Provider of sign-in.
            store: Store of tokens and of the audit log.
            name: Name of the service, for its cookies.
            turn_away: Refuses requests that are too frequent.
        """
        self._provider, self._store, self._turn_away = provider, store, turn_away
        self._session, self._pending = access.session_cookie(name), access.session_cookie(name) + "_sign_in"
        self._seal, self._files = Seal(), page_files.read_page_files()

    async def __call__(self, scope: Scope, send: Send, token: str) -> bool:
        """Answer a request of sign-in or sign-out, and return True; return False for any other request."""
        what = scope["method"], scope["path"]
        if what == ("POST", OUT):
            await self._out(scope, send, token)
        elif what not in (("GET", THERE), ("GET", BACK)):
            return False
        elif await self._turn_away(scope, send):
            pass
        elif what[1] == THERE:
            await self._there(scope, send)
        else:
            await self._back(scope, send)
        return True

    async def show_sign_in_page(self, scope: Scope, send: Send) -> bool:
        """Show the sign-in page to a browser without a token; return False if the request is for something else."""
        if scope["method"] == "GET" and scope["path"] in _OPEN:
            file = self._files[scope["path"][1:]]
            await _answer(send, 200, [(b"content-type", file.media_type.encode())], file.content)
            return True
        if scope["method"] != "GET" or scope["path"] not in ("/", "/index.html"):
            return False
        said = "Sign in to see runs and jobs."
        await _answer(send, 401, [_HTML, _UNKEPT], _page("Sign in", said, "", "sign-in", "Sign in"))
        return True

    async def _there(self, scope: Scope, send: Send) -> None:
        """Redirect a browser to the provider, with a cookie that stores the pending sign-in."""
        pending = PendingSignIn.new()
        try:
            target = await SIGN_IN.run(self._provider.begin, pending)
        except HopsmlError as error:
            await self._refused(send, error, "")
            return
        kept = access.cookie_header(self._pending, self._seal.close(pending), scope, site="Lax", lasts_s=LASTS_S)
        await _answer(send, 303, [(b"location", target.encode()), kept, _UNKEPT], b"")

    async def _back(self, scope: Scope, send: Send) -> None:
        """Complete a sign-in: verify the provider's response, and store a new token in the session cookie."""
        try:
            token = await SIGN_IN.run(self._signed_in, scope)
        except HopsmlError as error:
            await self._refused(send, error, "../")
            return
        lasts_s = int(self._provider.rules.lasts)
        kept = access.cookie_header(self._session, token, scope, lasts_s=lasts_s)
        over = access.cookie_header(self._pending, "", scope, site="Lax", lasts_s=0)
        on = '<meta http-equiv="refresh" content="0; url=../">'
        page = _page("Signed in", "The page opens automatically.", "../", "", "Open the page", on)
        await _answer(send, 200, [_HTML, kept, over, _UNKEPT], page)

    def _signed_in(self, scope: Scope) -> str:
        """Verify the provider's response, and return a new token for the user."""
        given = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        pending = self._begun(scope)
        rules, now = self._provider.rules, time.time()
        who = caller_of_claims(self._provider.verified_claims(pending, given), rules)
        note = AuditEntry(now, who.user, who.role.name.lower(), "sign in", "", 200, _peer(scope))
        return Tokens(self._store).create(
            who.user, who.role, now, label=SIGNED_IN, lasts_s=rules.lasts, also=callback_to_store(note)
        )

    def _begun(self, scope: Scope) -> PendingSignIn:
        """Return the sign-in that this browser has started.

        Raises:
            ArgumentError: There is none, or there are several, as another server or user may have started one.
        """
        found: list[PendingSignIn] = []
        for text in access.cookie_values(Headers(scope=scope), self._pending, scope):
            with contextlib.suppress(ArgumentError):
                found.append(self._seal.open(text))
        return found[0] if len(found) == 1 else self._seal.open("")

    async def _out(self, scope: Scope, send: Send, token: str) -> None:
        """End the session and delete its cookie; a token that does not belong to a session remains valid."""
        await AUTHENTICATION.run(self._end, scope, token)
        await _answer(send, 204, [access.cookie_header(self._session, "", scope, lasts_s=0), _UNKEPT], b"")

    def _end(self, scope: Scope, token: str) -> None:
        """End the session of a token, and record that in the audit log."""
        tokens, now = Tokens(self._store), time.time()
        if token and (who := tokens.caller(token, now)) is not None:
            note = AuditEntry(now, who.user, who.role.name.lower(), "sign out", "", 204, _peer(scope))
            tokens.sign_out(token, now, callback_to_store(note))

    async def _refused(self, send: Send, error: HopsmlError, root: str) -> None:
        """Show why a sign-in failed, with a link to try again."""
        said, remedy = split_message(str(error))
        page = _page("Sign-in failed", f"{said}: {remedy}." if remedy else said, root, "sign-in", "Sign in again")
        await _answer(send, 502 if status_of(error) == 409 else status_of(error), [_HTML, _UNKEPT], page)


def _page(title: str, said: str, root: str, target: str, link: str, more: str = "") -> bytes:
    """Return one of the sign-in pages as HTML."""
    words = {"title": title, "said": said, "root": root, "target": target, "link": link}
    return _PAGE.format(more=more, **{name: html.escape(word) for name, word in words.items()}).encode()


def _peer(scope: Scope) -> str:
    """Return the address of a request's client."""
    return str((scope.get("client") or ("",))[0])


async def _answer(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    """Send a complete response."""
    length = [] if status == 204 else [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *length]})
    await send({"type": "http.response.body", "body": body})
