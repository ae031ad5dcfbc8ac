"""Secrets of users: kept encrypted, each under its owner's and its own name, and given to nobody but that owner's jobs."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import delete, insert, select

from hopsml.errors import ArgumentError, ServiceError
from hopsml.service.spec import secret_rules
from hopsml.service.store.schema import secrets
from hopsml.service.store.store import JobStore
from hopsml.storage import durable

KEY = "HOPSML_SECRETS_KEY"
MOST = 1000  # of one owner
_KEY_BYTES, _NONCE_BYTES = 32, 12


@dataclass(frozen=True, slots=True)
class SecretRow:
    """A secret without its value. ``stored_s``: when it was given its value, seconds since 1970."""

    name: str
    stored_s: float


class Secrets:
    """The secrets of one store, under one key."""

    def __init__(self, store: JobStore, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._store, self._cipher = store, AESGCM(key)

    def put(self, owner: str, name: str, value: str, now: float) -> None:
        """Keep a value, in the place of the one before. Raises ArgumentError where name or value cannot be kept."""
        try:
            secret_rules.check_name(name)
        except ValueError as error:
            raise ArgumentError(str(error)) from None
        secret_rules.check_value(name, value)
        nonce = os.urandom(_NONCE_BYTES)
        sealed = base64.b64encode(nonce + self._cipher.encrypt(nonce, value.encode(), _place(owner, name))).decode()
        with self._store.writing() as connection:
            connection.execute(delete(secrets).where(secrets.c.owner == owner, secrets.c.name == name))
            kept = connection.execute(select(secrets.c.name).where(secrets.c.owner == owner)).all()
            if len(kept) >= MOST:
                raise ArgumentError(
                    f"{owner} has {MOST} secrets, and more are not kept: remove some (`hopsml secrets rm`)"
                )
            connection.execute(insert(secrets).values(owner=owner, name=name, sealed=sealed, stored_s=now))

    def names(self, owner: str) -> list[SecretRow]:
        """Those of an owner, by name."""
        query = select(secrets.c.name, secrets.c.stored_s).where(secrets.c.owner == owner).order_by(secrets.c.name)
        with self._store.reading() as connection:
            return [SecretRow(row.name, row.stored_s) for row in connection.execute(query)]

    def remove(self, owner: str, name: str) -> None:
        """Forget one. Raises ArgumentError where there is none."""
        with self._store.writing() as connection:
            found = connection.execute(delete(secrets).where(secrets.c.owner == owner, secrets.c.name == name))
            if not found.rowcount:
                raise ArgumentError(f"{owner} has no secret {name!r}; `hopsml secrets ls` lists those that there are")

    def check(self, owner: str, names: Sequence[str]) -> None:
        """Raise ArgumentError where an owner lacks one of these."""
        known = {row.name for row in self.names(owner)}
        if missing := [name for name in names if name not in known]:
            raise ArgumentError(
                f"{owner} has no secret {', '.join(missing)}; `hopsml secrets put {missing[0]}` keeps it for the job"
            )

    def values(self, owner: str, names: Sequence[str]) -> dict[str, str]:
        """By name. Raises as ``check`` does, and ServiceError where the key is another one than when they were put."""
        from cryptography.exceptions import InvalidTag

        self.check(owner, names)
        found = {}
        query = select(secrets).where(secrets.c.owner == owner, secrets.c.name.in_(names))
        with self._store.reading() as connection:
            rows = connection.execute(query).all()
        for row in rows:
            sealed = base64.b64decode(row.sealed)
            try:
                opened = self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], _place(owner, row.name))
            except InvalidTag:
                raise ServiceError(
                    f"secret {row.name} of {owner} was kept under another key than this server's: give all servers of a "
                    f"database one {KEY}, or put the secret again"
                ) from None
            found[row.name] = opened.decode()
        return found


def _place(owner: str, name: str) -> bytes:
    """What a sealed value is bound to: moved to another row it does not open."""
    return f"{name}\0{owner}".encode()


def key(state: Path) -> bytes:
    """The key of a server: of the variable, which is taken out of the environment, else of a file, made where there is none.

    Raises ArgumentError for a variable that holds none.
    """
    if text := os.environ.pop(KEY, ""):
        return _decoded(text, KEY)
    file = state / "secrets.key"
    fresh = state / f"secrets.key.{os.getpid()}"
    if not file.exists():
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as opened:
            opened.write(base64.b64encode(os.urandom(_KEY_BYTES)))
        durable.sync_file(fresh)
        try:
            os.link(fresh, file)
        except FileExistsError:  # another server was quicker
            pass
        finally:
            fresh.unlink()
    # A lost key makes all secrets unreadable; the process that created it may not have synced its folder yet.
    durable.sync_file(state)
    return _decoded(file.read_text(), str(file))


def _decoded(text: str, where: str) -> bytes:
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
