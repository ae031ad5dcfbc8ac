"""The audit log: who has changed what, when and from where, and who was refused. Never a token, never what was sent."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from sqlalchemy import delete, insert, select

from hopsml.service.store.schema import audit
from hopsml.service.store.store import Also, JobStore

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

_LENGTHS = {"user": 200, "role": 20, "action": 60, "target": 200, "peer": 100}


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One call. ``user`` and ``role`` are empty where nobody knows whose it was; ``target``: a job, a token's id, a digest;
    ``outcome``: the answer's HTTP status; ``peer``: the address that it came from.
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
    """An entry as it is stored."""

    id: int


@dataclass(frozen=True, slots=True)
class AuditPage:
    """Some of many; ``cursor`` leads to the next ones, None at the end."""

    entries: tuple[AuditRow, ...]
    cursor: int | None = None


class AuditLog:
    """That of one store."""

    def __init__(self, store: JobStore) -> None:
        self._store = store

    def add(self, entry: AuditEntry) -> None:
        """Store one, in a transaction of its own."""
        with self._store.writing() as connection:
            _add(connection, entry)

    def page(self, *, before: int | None = None, limit: int = 100, user: str = "", action: str = "") -> AuditPage:
        """Entries, the newest first; ``before``: the cursor of the page before."""
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

    def drop(self, before_s: float) -> int:
        """Forget what is older; how many they were."""
        with self._store.writing() as connection:
            return connection.execute(delete(audit).where(audit.c.at_s < before_s)).rowcount


def with_change(entry: AuditEntry) -> Also:
    """Stores an entry in the transaction of the change that it is about, which names the target."""
    return lambda connection, target: _add(connection, replace(entry, target=target))


def _add(connection: Connection, entry: AuditEntry) -> None:
    values = asdict(entry)
    connection.execute(
        insert(audit).values({**values, **{name: _short(values[name], _LENGTHS[name]) for name in _LENGTHS}})
    )


def _short(text: str, length: int) -> str:
    """What somebody has sent, as one line that fits. PostgreSQL takes no NUL, and no half of a pair of surrogates."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text[:length])
