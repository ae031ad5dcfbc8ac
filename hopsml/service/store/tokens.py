"""Tokens of users and programs, stored as digests, with a role and an expiry."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from sqlalchemy import insert, select, update

from hopsml.errors import ArgumentError
from hopsml.service.store.schema import tokens
from hopsml.service.store.store import Also, JobStore

if TYPE_CHECKING:
    from sqlalchemy.engine import Row

ID_LENGTH = 12  # length of a token's id: the beginning of its digest
SIGNED_IN = "signed in"  # label of tokens of sign-in sessions, which end at sign-out
SIGNED_IN_DAYS = (
    # days for which a user's access counts after the end of the last session, as providers do not report its removal
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
        token = secrets.token_urlsafe(32)
        digest = _digest(token)
        values = {"digest": digest, "user": user, "role": role.name, "label": label, "created_s": now}
        with self._store.writing() as connection:
            connection.execute(insert(tokens).values(**values, expires_s=now + lasts_s if lasts_s else None))
            if also is not None:
                also(connection, digest[:ID_LENGTH])
        return token

    def caller(self, token: str, now: float) -> Caller | None:
        """Return the owner and role of a token; None if it is unknown, expired or revoked."""
        with self._store.reading() as connection:
            row = connection.execute(select(tokens).where(tokens.c.digest == _digest(token))).one_or_none()
        if row is None or row.revoked_s is not None or (row.expires_s is not None and row.expires_s <= now):
            return None
        return Caller(row.user, Role[row.role])

    def may_submit(self, user: str, now: float) -> bool:
        """Return True if a user may still submit jobs: by a valid token, or by the role of the last sign-in.

        A session that was revoked, or that ended ``SIGNED_IN_DAYS`` ago, is not considered.
        """
        with self._store.reading() as connection:
            rows = connection.execute(select(tokens).where(tokens.c.user == user).order_by(tokens.c.created_s)).all()
        sessions = [row for row in rows if row.label == SIGNED_IN]
        given = [row for row in rows if row.label != SIGNED_IN]
        grace_s = SIGNED_IN_DAYS * 86_400.0
        return any(_is_valid(row, now) for row in given) or (bool(sessions) and _is_valid(sessions[-1], now - grace_s))

    def all(self) -> list[TokenRow]:
        """Return all tokens without their values, the oldest first."""
        with self._store.reading() as connection:
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
        with self._store.writing() as connection:
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
        with self._store.writing() as connection:
            rule = (tokens.c.digest == _digest(token)) & (tokens.c.label == SIGNED_IN) & tokens.c.revoked_s.is_(None)
            # Not revoked: a user who signs out may sign in again.
            if connection.execute(update(tokens).where(rule).values(expires_s=now)).rowcount:
                also(connection, _digest(token)[:ID_LENGTH])


def _is_valid(row: Row[Any], now: float) -> bool:
    """Return True for a token that allows the submission of jobs: not revoked, and not expired at ``now``."""
    is_there = row.revoked_s is None and (row.expires_s is None or row.expires_s > now)
    return is_there and Role[row.role] >= Role.USER


def _digest(token: str) -> str:
    """Return the digest of a token; with 256 random bits, it needs neither salt nor a slow hash function."""
    return hashlib.sha256(token.encode()).hexdigest()
