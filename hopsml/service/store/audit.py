"""Audit log of changes and refused requests: user, action, time and client address.

It contains neither tokens nor the content of requests.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from sqlalchemy import delete, insert, select

from hopsml.service.store.database import audit
from hopsml.service.store.store import Also, JobStore

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

_LENGTHS = {"user": 200, "role": 20, "action": 60, "target": 200, "peer": 100}


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One request in the audit log.

    Attributes:
        at_s: The time, in seconds since 1970.
        user: The caller; empty if the request was not authenticated.
        role: Role of the caller; empty if the request was not authenticated.
        action: What was requested.
        target: A job, the id of a token, or a digest.
        outcome: HTTP status of the response.
        peer: Address of the client.
    """

    at_s: float
    user: str
    role: str
    action: str
    target: str
    outcome: int
    peer: str


@dataclass(frozen=True, slots=True)
class AuditRow(AuditEntry):
    """An entry of the audit log with its id in the database."""

    id: int


@dataclass(frozen=True, slots=True)
class AuditPage:
    """A page of the audit log; ``cursor`` selects the next page, and is None at the end."""

    entries: tuple[AuditRow, ...]
    cursor: int | None = None


class AuditLog:
    """Audit log of one job store."""

    def __init__(self, store: JobStore) -> None:
        self._store = store

    def add(self, entry: AuditEntry) -> None:
        """Store an entry in a separate transaction."""
        with self._store.writing() as connection:
            _add(connection, entry)

    def page(self, *, before: int | None = None, limit: int = 100, user: str = "", action: str = "") -> AuditPage:
        """Return a page of entries, the newest first.

        Args:
            before: Cursor of the previous page; None for the first page.
            limit: Most entries of the page.
            user: Only entries of this user; empty for all.
            action: Only entries with this action; empty for all.
        """
        rules = [
            audit.c.id < before if before is not None else None,
            audit.c.user == user if user else None,
            audit.c.action == action if action else None,
        ]
        query = select(audit).where(*(rule for rule in rules if rule is not None))
        with self._store.reading() as connection:
            rows = connection.execute(query.order_by(audit.c.id.desc()).limit(limit + 1)).all()
        found = tuple(AuditRow(**row._mapping) for row in rows[:limit])
        return AuditPage(found, found[-1].id if len(rows) > limit else None)

    def delete_before(self, before_s: float) -> int:
        """Delete the entries before a time, in seconds since 1970; return their number."""
        with self._store.writing() as connection:
            return connection.execute(delete(audit).where(audit.c.at_s < before_s)).rowcount


def with_change(entry: AuditEntry) -> Also:
    """Return a callback that stores an entry, with its target, in the transaction of the change that it describes."""
    return lambda connection, target: _add(connection, replace(entry, target=target))


def _add(connection: Connection, entry: AuditEntry) -> None:
    """Insert an entry, with its texts limited to the columns' lengths."""
    values = asdict(entry)
    connection.execute(
        insert(audit).values({**values, **{name: _short(values[name], _LENGTHS[name]) for name in _LENGTHS}})
    )


def _short(text: str, length: int) -> str:
    """Return a client's text without unprintable characters, shortened to a length.

    PostgreSQL accepts neither NUL nor single surrogates.
    """
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text[:length])
