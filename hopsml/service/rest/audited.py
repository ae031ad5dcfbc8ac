"""Middleware that records changes, and refused requests to change something, in the audit log.

A change that is one transaction of the store contains its entry: a route requests that by ``with entry.stored(201) as
also``. Entries of all other requests are stored after the response; if that fails, they are written to the server's
log.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hopsml.errors import StoreError
from hopsml.service.rest.threads import AUTHENTICATION
from hopsml.service.store.accounts import AuditEntry, AuditLog, Caller, callback_to_store

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from hopsml.service.store.store import Also

log = logging.getLogger("hopsml.service")

READING = ("GET", "HEAD", "OPTIONS")
_ROOT = "/api/v1/"
_REFUSED = (401, 403, 429)
_SUBMISSIONS = ("submit", "clone", "schedule put", "upload")
_NOT_TAKEN = (400, 409)  # status codes of a refused submission; an invalid one has status 422, and is not recorded
_VERBS = ("cancel", "pause", "resume", "move", "clone", "remove")  # of a job
_OF_SCHEDULES = ("pause", "resume", "trigger")
_ACTIONS = {
    ("POST", "workspaces"): "upload",
    ("POST", "jobs"): "submit",
    ("POST", "tokens"): "token create",
    ("DELETE", "tokens"): "token revoke",
    ("POST", "schedules"): "schedule put",
    ("DELETE", "schedules"): "schedule remove",
    ("PUT", "secrets"): "secret put",
    ("DELETE", "secrets"): "secret remove",
    ("PUT", "run-notes"): "note put",
    ("POST", "views"): "view save",
    ("DELETE", "views"): "view delete",
}
_PLAIN = re.compile(r"[a-z][-a-z]{0,29}")


def action_of(method: str, path: str) -> tuple[str, str] | None:
    """Return action and target of a request; None for one that only reads.

    The number of different actions is bounded.
    """
    _, root, rest = path.partition(_ROOT)
    if method in READING or not root:
        return None
    what, *steps = rest.split("/")
    target = steps[0] if steps else ""
    if method == "POST" and what == "jobs" and len(steps) > 1:
        return steps[1] if steps[1] in _VERBS else "other", target
    if method == "POST" and what == "schedules" and len(steps) > 1:
        return f"schedule {steps[1]}" if steps[1] in _OF_SCHEDULES else "other", target
    if method == "POST" and what == "runs" and steps[1:] == ["profiles"]:
        return "profile", target
    if found := _ACTIONS.get((method, what)):
        return found, target
    verb = method.lower() if method in ("POST", "PUT", "DELETE") else "change"
    return f"{verb} {what}" if _PLAIN.fullmatch(what) else "other", target


def is_audited(status: int, action: str) -> bool:
    """Return True if a request with this response status is recorded in the audit log."""
    return status < 400 or status in _REFUSED or (status in _NOT_TAKEN and action in _SUBMISSIONS)


class CallEntry:
    """Audit log entry of a request in progress; routes set ``target`` when they have determined it."""

    def __init__(self, caller: Caller | None, action: str, target: str, peer: str) -> None:
        self.caller, self.action, self.target, self._peer = caller, action, target, peer
        self.is_stored = False

    def at(self, now: float, outcome: int) -> AuditEntry:
        """Return the entry as it is stored.

        Args:
            now: The time, in seconds since 1970.
            outcome: HTTP status of the response.
        """
        user, role = (self.caller.user, self.caller.role.name.lower()) if self.caller is not None else ("", "")
        return AuditEntry(now, user, role, self.action, self.target, outcome, self._peer)

    @contextmanager
    def stored(self, outcome: int) -> Iterator[Also]:
        """Provide a callback that stores this entry in the transaction of a change.

        If the store finds nothing to change, and therefore does not call it, the entry is stored after the response.

        Args:
            outcome: HTTP status of the response.
        """
        change, called = callback_to_store(self.at(time.time(), outcome)), False

        def also(connection: Connection, target: str) -> None:
            """Store the entry within the transaction of the change."""
            nonlocal called
            change(connection, target)
            called = True

        yield also
        self.is_stored = called


class AuditMiddleware:
    """Middleware that records changes in the audit log; the authentication middleware is inside it."""

    def __init__(self, app: ASGIApp, audit: AuditLog) -> None:
        self._app, self._audit = app, audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI request."""
        found = action_of(scope["method"], scope["path"]) if scope["type"] == "http" else None
        if found is None:
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        entry = state["entry"] = CallEntry(None, *found, peer=(scope.get("client") or ("",))[0])
        status = 500

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            if is_audited(status, entry.action) and not entry.is_stored and not state.get("is_repeated"):
                entry.caller = state.get("caller")
                await AUTHENTICATION.run(self._add, entry.at(time.time(), status))

    def _add(self, entry: AuditEntry) -> None:
        """Store an entry; if the store fails, log it."""
        try:
            self._audit.add(entry)
        except StoreError as error:
            who = f"{entry.user} ({entry.role})" if entry.user else "somebody unknown"
            log.warning(
                "the audit log lacks %s %r by %s from %s, answered %d: %s",
                *(entry.action, entry.target[:80], who, entry.peer, entry.outcome, error),
            )
