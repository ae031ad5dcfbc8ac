"""Accounts of users and programs: tokens, stored as digests, with a role and an expiry; encrypted secrets; audit log.

A secret is bound to owner and name, and only jobs of its owner receive it. The audit log has changes and refused requests
with user, action, time and client address, and neither tokens nor the content of requests.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import IntEnum
from pathlib import Path
from secrets import token_urlsafe
from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, insert, select, update

from hopsml.core.variables import SETTINGS, Settings
from hopsml.errors import ArgumentError, ServiceError
from hopsml.service.spec import fields
from hopsml.service.store.database import audit, secrets, tokens
from hopsml.service.store.store import Also, JobStore
from hopsml.storage import durable

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement
    from sqlalchemy.engine import Connection, Row


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
        with self._store.write_transaction() as connection:
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
        with self._store.read_transaction() as connection:
            rows = connection.execute(query.order_by(audit.c.id.desc()).limit(limit + 1)).all()
        found = tuple(AuditRow(**row._mapping) for row in rows[:limit])
        return AuditPage(found, found[-1].id if len(rows) > limit else None)

    def delete_before(self, before_s: float) -> int:
        """Delete the entries before a time, in seconds since 1970; return their number."""
        with self._store.write_transaction() as connection:
            return connection.execute(delete(audit).where(audit.c.at_s < before_s)).rowcount


def callback_to_store(entry: AuditEntry) -> Also:
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


KEY = Settings.secrets_key.name
MOST_SECRETS = 1000  # most secrets of one owner
_KEY_BYTES, _NONCE_BYTES = 32, 12


@dataclass(frozen=True, slots=True)
class SecretRow:
    """A secret without its value; ``stored_s`` is the time of its last change, in seconds since 1970."""

    name: str
    stored_s: float


class Secrets:
    """Secrets of one job store, encrypted with one key."""

    def __init__(self, store: JobStore, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._store, self._cipher = store, AESGCM(key)

    def store_secret(self, owner: str, name: str, value: str, now: float) -> None:
        """Store a secret, and replace its previous value. Raises ArgumentError if name or value is not accepted."""
        try:
            fields.check_secret_name(name)
        except ValueError as error:
            raise ArgumentError(str(error)) from None
        fields.check_secret_value(name, value)
        nonce = os.urandom(_NONCE_BYTES)
        sealed = base64.b64encode(nonce + self._cipher.encrypt(nonce, value.encode(), _place(owner, name))).decode()
        with self._store.write_transaction() as connection:
            connection.execute(delete(secrets).where(secrets.c.owner == owner, secrets.c.name == name))
            kept = connection.execute(select(secrets.c.name).where(secrets.c.owner == owner)).all()
            if len(kept) >= MOST_SECRETS:
                raise ArgumentError(
                    f"{owner} has {MOST_SECRETS} secrets, which is the limit; remove some (`hopsml secrets rm`)"
                )
            connection.execute(insert(secrets).values(owner=owner, name=name, sealed=sealed, stored_s=now))

    def names(self, owner: str) -> list[SecretRow]:
        """Return an owner's secrets without their values, by name."""
        query = select(secrets.c.name, secrets.c.stored_s).where(secrets.c.owner == owner).order_by(secrets.c.name)
        with self._store.read_transaction() as connection:
            return [SecretRow(row.name, row.stored_s) for row in connection.execute(query)]

    def remove(self, owner: str, name: str) -> None:
        """Delete a secret of an owner. Raises ArgumentError if it does not exist."""
        with self._store.write_transaction() as connection:
            found = connection.execute(delete(secrets).where(secrets.c.owner == owner, secrets.c.name == name))
            if not found.rowcount:
                raise ArgumentError(f"{owner} has no secret {name!r}; `hopsml secrets ls` lists the existing ones")

    def check(self, owner: str, names: Sequence[str]) -> None:
        """Raise ArgumentError if an owner lacks one of these secrets."""
        known = {row.name for row in self.names(owner)}
        if missing := [name for name in names if name not in known]:
            raise ArgumentError(
                f"{owner} has no secret {', '.join(missing)}; `hopsml secrets put {missing[0]}` stores it for the job"
            )

    def values(self, owner: str, names: Sequence[str]) -> dict[str, str]:
        """Return the values of an owner's secrets, by name.

        Args:
            owner: The user.
            names: Names of the secrets.

        Raises:
            ArgumentError: The owner lacks one of them.
            ServiceError: A secret was encrypted with another key.
        """
        from cryptography.exceptions import InvalidTag

        self.check(owner, names)
        found = {}
        query = select(secrets).where(secrets.c.owner == owner, secrets.c.name.in_(names))
        with self._store.read_transaction() as connection:
            rows = connection.execute(query).all()
        for row in rows:
            sealed = base64.b64decode(row.sealed)
            try:
                opened = self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], _place(owner, row.name))
            except InvalidTag:
                raise ServiceError(
                    f"secret {row.name} of {owner} was encrypted with another key than this server's; set {KEY} to the "
                    "same value on all servers of a database, or store the secret again"
                ) from None
            found[row.name] = opened.decode()
        return found


def _place(owner: str, name: str) -> bytes:
    """Return the data that an encrypted value is bound to, so that it cannot be decrypted in another row."""
    return f"{name}\0{owner}".encode()


def secrets_key(state: Path) -> bytes:
    """Return the encryption key of a server.

    It is taken from the environment variable, which is then removed from the environment, or else from a file, which is
    created if it does not exist.

    Args:
        state: Folder of the key file.

    Raises:
        ArgumentError: The variable or the file contains no valid key.
    """
    if text := SETTINGS.secrets_key:
        del os.environ[KEY]
        return _decoded(text, KEY)
    file = state / "secrets.key"
    fresh = state / f"secrets.key.{os.getpid()}"
    if not file.exists():
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as opened:
            opened.write(base64.b64encode(os.urandom(_KEY_BYTES)))
        durable.sync_file(fresh)
        try:
            os.link(fresh, file)
        except FileExistsError:  # another server created it first
            pass
        finally:
            fresh.unlink()
    # A lost key makes all secrets unreadable; the process that created it may not have synced its folder yet.
    durable.sync_file(state)
    return _decoded(file.read_text(), str(file))


def _decoded(text: str, where: str) -> bytes:
    """Decode a key. Raises ArgumentError if it is invalid."""
    try:
        found = base64.b64decode(text.strip(), validate=True)
    except ValueError:
        found = b""
    if len(found) != _KEY_BYTES:
        raise ArgumentError(
            f"{where} holds no key: it must be {_KEY_BYTES} random bytes in base64, as `head -c {_KEY_BYTES} /dev/urandom | "
            "base64` makes them"
        )
    return found


ID_LENGTH = 12  # length of a token's id: the beginning of its digest
OWN = "user of the server process"  # label of the token that a server creates for its own user
SIGNED_IN = "signed in"  # label of tokens of sign-in sessions, which end at sign-out
SIGNED_IN_DAYS = (
    # days for which a user's access counts after the end of the last session, as providers do not report its removal;
    # also of a server's own user after the end of that server
    30.0
)


class Role(IntEnum):
    """Role of a caller, which includes the rights of all lower roles."""

    VIEWER = 1  # read
    USER = 2  # submit jobs, and change the user's own jobs
    OPERATOR = 3  # change jobs of all users
    ADMIN = 4  # create tokens


@dataclass(frozen=True, slots=True)
class Caller:
    """Authenticated caller of a request."""

    user: str
    role: Role


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A token without its value; ``id`` is the beginning of its digest, and times are seconds since 1970."""

    id: str
    user: str
    role: Role
    label: str
    created_s: float
    expires_s: float | None
    revoked_s: float | None


class Tokens:
    """Tokens of one job store."""

    def __init__(self, store: JobStore) -> None:
        self._store = store

    def create(
        self,
        user: str,
        role: Role,
        now: float,
        *,
        label: str = "",
        lasts_s: float | None = None,
        also: Also | None = None,
    ) -> str:
        """Create and return a token, which cannot be read again.

        Args:
            user: Owner of the token.
            role: Role of the token.
            now: The time, in seconds since 1970.
            label: Purpose of the token.
            lasts_s: Validity in seconds; None for no expiry.
            also: Stores further rows in the same transaction.

        Raises:
            ArgumentError: The user's name is not 1 to 200 printable characters.
        """
        if not user or len(user) > 200 or not user.isprintable():
            raise ArgumentError(f"user {user[:40]!r}: a user's name has 1 to 200 printable characters")
        token = token_urlsafe(32)
        digest = _digest(token)
        values = {"digest": digest, "user": user, "role": role.name, "label": label, "created_s": now}
        with self._store.write_transaction() as connection:
            connection.execute(
                insert(tokens).values(**values, expires_s=now + lasts_s if lasts_s is not None else None)
            )
            if also is not None:
                also(connection, digest[:ID_LENGTH])
        return token

    def renew_own(self, token: str, user: str, now: float) -> str:
        """Create and return the administrator's token of a server's own user, in place of an earlier one.

        Args:
            token: The earlier token, which is no longer valid; empty if there is none.
            user: The server's user.
            now: The time, in seconds since 1970.
        """
        fresh = token_urlsafe(32)
        values = {"digest": _digest(fresh), "user": user, "role": Role.ADMIN.name, "created_s": now, "expires_s": None}
        with self._store.write_transaction() as connection:
            if not connection.execute(update(tokens).where(_is_own(token)).values(**values)).rowcount:
                connection.execute(insert(tokens).values(**values, label=OWN))
        return fresh

    def expire_own(self, token: str, now: float) -> None:
        """End the validity of a server's own token."""
        with self._store.write_transaction() as connection:
            # Not revoked: its user may still run scheduled jobs.
            connection.execute(update(tokens).where(_is_own(token)).values(expires_s=now))

    def caller(self, token: str, now: float) -> Caller | None:
        """Return the owner and role of a token; None if it is unknown, expired or revoked."""
        with self._store.read_transaction() as connection:
            row = connection.execute(select(tokens).where(tokens.c.digest == _digest(token))).one_or_none()
        if row is None or row.revoked_s is not None or (row.expires_s is not None and row.expires_s <= now):
            return None
        return Caller(row.user, Role[row.role])

    def may_submit(self, user: str, now: float) -> bool:
        """Return True if a user may still submit jobs: by a valid token, or by the role of the last sign-in.

        A session that was revoked, or that ended ``SIGNED_IN_DAYS`` ago, is not considered; nor is a server's own token.
        """
        with self._store.read_transaction() as connection:
            rows = connection.execute(select(tokens).where(tokens.c.user == user).order_by(tokens.c.created_s)).all()
        sessions = [row for row in rows if row.label == SIGNED_IN]
        given = [row for row in rows if row.label != SIGNED_IN]
        graced = now - SIGNED_IN_DAYS * 86_400.0
        return any(_is_valid(row, graced if row.label == OWN else now) for row in given) or (
            bool(sessions) and _is_valid(sessions[-1], graced)
        )

    def all(self) -> list[TokenRow]:
        """Return all tokens without their values, the oldest first."""
        with self._store.read_transaction() as connection:
            rows = connection.execute(select(tokens).order_by(tokens.c.created_s)).all()
        return [
            TokenRow(
                row.digest[:ID_LENGTH], row.user, Role[row.role], row.label, row.created_s, row.expires_s, row.revoked_s
            )
            for row in rows
        ]

    def revoke(self, token_id: str, now: float, also: Also | None = None) -> None:
        """Revoke a token by its id.

        Args:
            token_id: Id of the token.
            now: The time, in seconds since 1970.
            also: Stores further rows in the same transaction.

        Raises:
            ArgumentError: There is no such token that is not revoked.
        """
        with self._store.write_transaction() as connection:
            rule = tokens.c.digest.startswith(token_id, autoescape=True) & tokens.c.revoked_s.is_(None)
            if (
                len(token_id) < ID_LENGTH
                or not connection.execute(update(tokens).where(rule).values(revoked_s=now)).rowcount
            ):
                raise ArgumentError(
                    f"there is no token {token_id!r} that is not revoked; `hopsml tokens ls` lists them"
                )
            if also is not None:
                also(connection, token_id[:ID_LENGTH])

    def sign_out(self, token: str, now: float, also: Also) -> None:
        """End the token of a sign-in session; other tokens are not affected.

        Args:
            token: The token.
            now: The time, in seconds since 1970.
            also: Stores further rows in the same transaction, if a session ended.
        """
        with self._store.write_transaction() as connection:
            rule = (tokens.c.digest == _digest(token)) & (tokens.c.label == SIGNED_IN) & tokens.c.revoked_s.is_(None)
            # Not revoked: a user who signs out may sign in again.
            if connection.execute(update(tokens).where(rule).values(expires_s=now)).rowcount:
                also(connection, _digest(token)[:ID_LENGTH])


def _is_valid(row: Row[Any], now: float) -> bool:
    """Return True for a token that allows the submission of jobs: not revoked, and not expired at ``now``."""
    is_there = row.revoked_s is None and (row.expires_s is None or row.expires_s > now)
    return is_there and Role[row.role] >= Role.USER


def _is_own(token: str) -> ColumnElement[bool]:
    """Return the condition for the row of a server's own token that was not revoked."""
    return (tokens.c.digest == _digest(token)) & (tokens.c.label == OWN) & tokens.c.revoked_s.is_(None)


def _digest(token: str) -> str:
    """Return the digest of a token; with 256 random bits, it needs neither salt nor a slow hash function."""
    return hashlib.sha256(token.encode()).hexdigest()
