"""Hadoop's token file: delegation tokens that YARN, Spark or a driver gives a process (``HADOOP_TOKEN_FILE_LOCATION``).

The file is ``HDTS``, a version byte (0: Hadoop's Writables), a count, then alias, identifier, password, kind and service
of each token, and a count of secrets with name and value. hdfs-native reads it by itself at each new connection; WebHDFS
requires tokens as text. A file is replaced, never changed: a reader gets the old content or the new one.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field

from hopsml.core.variables import Settings
from hopsml.errors import ArgumentError

VARIABLE = "HADOOP_TOKEN_FILE_LOCATION"
OF_OWN_FILE = Settings.own_file.name  # a process's own file, and the one with which hopsml's first process was started
HDFS_KIND = "HDFS_DELEGATION_TOKEN"
HA_PREFIX = "ha-hdfs:"  # of the service of a token for a name service with several NameNodes
MAX_BYTES = 4 << 20  # of a file; a token has about 200 bytes
MAX_ENTRIES = 10_000  # tokens, and secrets
_MAGIC = b"HDTS\0"


@dataclass(frozen=True)
class TokenFacts:
    """Contents of an HDFS token's identifier, as far as clients need them; times in seconds since the epoch."""

    owner: str  # principal or user name on whose behalf its bearer acts
    renewer: str
    real_user: str  # the proxy user that has obtained it; "" if the owner has
    issued_s: float
    last_s: float  # the token cannot be renewed beyond this time


@dataclass(frozen=True)
class Token:
    """One delegation token, with the fields of the file; its text form shows neither identifier nor password."""

    alias: str
    identifier: bytes = field(repr=False)
    password: bytes = field(repr=False)
    kind: str
    service: str

    def as_text(self) -> str:
        """Return the token in base64, as WebHDFS requires it for ``delegation=`` in an address."""
        fields = (self.identifier, self.password, self.kind.encode(), self.service.encode())
        return base64.urlsafe_b64encode(b"".join(map(_block, fields))).rstrip(b"=").decode()

    def describe(self) -> TokenFacts:
        """Return owner and times of an HDFS token; ArgumentError for one of another kind or with a broken identifier."""
        if self.kind != HDFS_KIND:
            raise ArgumentError(f"a token of kind {self.kind!r} has no readable identifier; only {HDFS_KIND} has")
        reader = _Reader(self.identifier, 1)  # its first byte is a version
        names = reader.text(), reader.text(), reader.text()
        return TokenFacts(*names, reader.number() / 1000, reader.number() / 1000)


@dataclass(frozen=True)
class Credentials:
    """Content of a token file."""

    tokens: tuple[Token, ...] = ()
    secrets: tuple[tuple[str, bytes], ...] = field(default=(), repr=False)

    def encode(self) -> bytes:
        """Return the content in Hadoop's format, version 0."""
        parts = [_MAGIC, _number(len(self.tokens))]
        for token in self.tokens:
            texts = token.alias.encode(), token.kind.encode(), token.service.encode()
            parts += map(_block, (texts[0], token.identifier, token.password, *texts[1:]))
        parts.append(_number(len(self.secrets)))
        for name, value in self.secrets:
            parts += [_block(name.encode()), _block(value)]
        return b"".join(parts)

    def updated(self, newer: Credentials) -> Credentials:
        """Return both contents together; of tokens for the same service, and of secrets of one name, the newer one."""
        tokens = {(token.kind, token.service): token for token in (*self.tokens, *newer.tokens)}
        return Credentials(tuple(tokens.values()), tuple(dict((*self.secrets, *newer.secrets)).items()))

    def of_kinds(self, kinds: Iterable[str]) -> Credentials:
        """Return only the tokens of these kinds, without secrets."""
        wanted = frozenset(kinds)
        return Credentials(tuple(token for token in self.tokens if token.kind in wanted))


def parse(data: bytes) -> Credentials:
    """Return a file's content; ArgumentError for a broken or oversized one, or for the protobuf form."""
    if len(data) > MAX_BYTES:
        raise ArgumentError(f"the Hadoop token file has {len(data)} bytes; at most {MAX_BYTES} are read")
    if data[:4] != _MAGIC[:4]:
        raise ArgumentError("this is not a Hadoop token file, since it does not begin with HDTS")
    if data[4:5] != _MAGIC[4:]:
        raise ArgumentError(f"the Hadoop token file has version {data[4:5]!r}; only version 0 can be read")
    reader = _Reader(data, 5)
    tokens = tuple(
        Token(reader.text(), reader.block(), reader.block(), reader.text(), reader.text())
        for _ in range(reader.count())
    )
    found = Credentials(tokens, tuple((reader.text(), reader.block()) for _ in range(reader.count())))
    reader.end()
    return found


def read(path: str | os.PathLike[str]) -> Credentials:
    """Return the content of a token file; ArgumentError if it cannot be read or parsed."""
    try:
        with open(path, "rb") as file:
            return parse(file.read(MAX_BYTES + 1))
    except OSError as error:
        raise ArgumentError(
            f"{os.fspath(path)!r}: the token file cannot be read ({error.strerror or error})"
        ) from error


def write(path: str | os.PathLike[str], credentials: Credentials) -> None:
    """Replace a token file atomically by one that only this user can read. Raises OSError."""
    target = os.path.abspath(path)
    fresh = f"{target}.{secrets.token_hex(4)}.new"
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(credentials.encode())
        os.replace(fresh, target)
    except BaseException:
        os.unlink(fresh)
        raise


def from_environment() -> Credentials:
    """Return the content of the file that ``HADOOP_TOKEN_FILE_LOCATION`` names; nothing if it is not set.

    Raises ArgumentError for a file that cannot be read or parsed.
    """
    path = os.environ.get(VARIABLE)
    if not path:
        return Credentials()
    try:
        return read(path)
    except ArgumentError as error:
        raise ArgumentError(f"{VARIABLE}={path!r}: {error}; set the variable to a Hadoop token file") from error


def environment_as_given(environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables for a program that logs in itself or outlives this process, such as spark-submit.

    It gets the token file with which hopsml's process was started, and not the process's own one, which is deleted with
    the process, and whose tokens a Java program would use until they end, as it reads the file only once.
    """
    found = dict(environment)
    try:
        own, given = json.loads(found.pop(OF_OWN_FILE, "[null, null]"))
    except (ValueError, TypeError):
        return found
    if own is not None and found.get(VARIABLE) == own:
        _set(found, VARIABLE, given)
    return found


class OwnTokenFile:
    """A process's own token file, which its variable names: what the process was given, and what it receives later."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Create the file in a private folder, with the tokens of the given file if that can be read.

        Child processes inherit the variable. Raises OSError.
        """
        self._before = _variables()
        self.path = os.path.abspath(os.path.join(folder, "tokens"))
        write(self.path, self._base())
        self._own = self.path, json.dumps([self.path, environment_as_given(os.environ).get(VARIABLE)])
        os.environ[VARIABLE], os.environ[OF_OWN_FILE] = self._own
        _own_files.append(self)

    @property
    def is_given_tokens(self) -> bool:
        """True if the process was started with tokens."""
        return bool(self._base().tokens)

    def replace(self, received: Credentials) -> None:
        """Use these tokens, and those with which the process was started for other services. Raises OSError."""
        write(self.path, self._base().updated(received))

    def close(self) -> None:
        """Let the variable name the given file again; the own file is deleted with its folder."""
        if self in _own_files:
            _own_files.remove(self)
        for other in _own_files:  # created later: it must not return to this file
            if other._before[0] == self.path:
                other._before = self._before
        for name, own, before in zip((VARIABLE, OF_OWN_FILE), self._own, self._before, strict=True):
            if os.environ.get(name) == own:
                _set(os.environ, name, before)

    def _base(self) -> Credentials:
        """Return the content of the given file; nothing if there is none, or if it is broken or deleted."""
        given = self._before[0]
        try:
            return read(given) if given else Credentials()
        except ArgumentError:
            return Credentials()


_own_files: list[OwnTokenFile] = []  # of this process, the newest last


def _variables() -> tuple[str | None, str | None]:
    return os.environ.get(VARIABLE), os.environ.get(OF_OWN_FILE)


def _set(environment: MutableMapping[str, str], name: str, value: str | None) -> None:
    """Set a variable, or remove it for None."""
    if value is None:
        environment.pop(name, None)
    else:
        environment[name] = value


class _Reader:
    """Reader of Hadoop's Writables; every fault is an ArgumentError."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at

    def number(self) -> int:
        """Return Hadoop's integer of variable length: one byte, or a byte with the number of bytes that follow."""
        first = int.from_bytes(self._take(1), "big", signed=True)
        if first >= -112:
            return first
        value = int.from_bytes(self._take(-112 - first if first >= -120 else -120 - first), "big")
        return value if first >= -120 else ~value

    def count(self) -> int:
        """Return a number of entries."""
        found = self.number()
        if not 0 <= found <= MAX_ENTRIES:
            raise ArgumentError(f"the Hadoop token file announces {found} entries; at most {MAX_ENTRIES} are read")
        return found

    def block(self) -> bytes:
        return self._take(self.number())

    def text(self) -> str:
        try:
            return self.block().decode()
        except UnicodeDecodeError as error:
            raise ArgumentError(f"the Hadoop token file has a name that is not UTF-8, at byte {self._at}") from error

    def end(self) -> None:
        """Refuse bytes that follow the last entry."""
        if self._at != len(self._data):
            raise ArgumentError(f"the Hadoop token file has {len(self._data) - self._at} bytes after its last entry")

    def _take(self, count: int) -> bytes:
        piece = self._data[self._at : self._at + count]
        if count < 0 or len(piece) < count:
            raise ArgumentError(f"the Hadoop token file ends within a token, at byte {self._at}")
        self._at += count
        return piece


def _block(data: bytes) -> bytes:
    return _number(len(data)) + data


def _number(value: int) -> bytes:
    if value <= 127:
        return bytes([value])
    body = value.to_bytes((value.bit_length() + 7) // 8, "big")
    return bytes([256 - 112 - len(body)]) + body
