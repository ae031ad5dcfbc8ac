"""Secrets of users, encrypted and bound to owner and name, which only jobs of their owner receive."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import delete, insert, select

from hopsml.core.variables import SETTINGS, Settings
from hopsml.errors import ArgumentError, ServiceError
from hopsml.service.spec import secret_rules
from hopsml.service.store.schema import secrets
from hopsml.service.store.store import JobStore
from hopsml.storage import durable

KEY = Settings.secrets_key.name
MOST = 1000  # most secrets of one owner
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
        """Return an owner's secrets without their values, by name."""
        query = select(secrets.c.name, secrets.c.stored_s).where(secrets.c.owner == owner).order_by(secrets.c.name)
        with self._store.reading() as connection:
            return [SecretRow(row.name, row.stored_s) for row in connection.execute(query)]

    def remove(self, owner: str, name: str) -> None:
        """Delete a secret of an owner. Raises ArgumentError if it does not exist."""
        with self._store.writing() as connection:
            found = connection.execute(delete(secrets).where(secrets.c.owner == owner, secrets.c.name == name))
            if not found.rowcount:
                raise ArgumentError(f"{owner} has no secret {name!r}; `hopsml secrets ls` lists those that there are")

    def check(self, owner: str, names: Sequence[str]) -> None:
        """Raise ArgumentError if an owner lacks one of these secrets."""
        known = {row.name for row in self.names(owner)}
        if missing := [name for name in names if name not in known]:
            raise ArgumentError(
                f"{owner} has no secret {', '.join(missing)}; `hopsml secrets put {missing[0]}` keeps it for the job"
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
    """Return the data that an encrypted value is bound to, so that it cannot be decrypted in another row."""
    return f"{name}\0{owner}".encode()


def key(state: Path) -> bytes:
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
