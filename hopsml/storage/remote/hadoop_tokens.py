"""Reads delegation tokens from the file that YARN and Spark provide to a process (``HADOOP_TOKEN_FILE_LOCATION``).

The file is ``HDTS``, a version byte (0: Hadoop's Writables), a count, then alias, identifier, password, kind and
service of each token. hdfs-native reads it by itself; WebHDFS requires the token as text.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from dataclasses import dataclass

from hopsml.errors import ArgumentError

HDFS_KIND = "HDFS_DELEGATION_TOKEN"


@dataclass(frozen=True)
class Token:
    """One delegation token, with the fields of the file."""

    alias: str
    identifier: bytes
    password: bytes
    kind: str
    service: str

    def as_text(self) -> str:
        """Return the token in base64, as WebHDFS requires it for ``delegation=`` in an address."""
        fields = (self.identifier, self.password, self.kind.encode(), self.service.encode())
        wire = b"".join(_number(len(part)) + part for part in fields)
        return base64.urlsafe_b64encode(wire).rstrip(b"=").decode()


def from_environment() -> list[Token]:
    """Return the tokens of ``HADOOP_TOKEN_FILE_LOCATION``; empty if it is not set.

    Raises ArgumentError for a file that cannot be read or parsed.
    """
    path = os.environ.get("HADOOP_TOKEN_FILE_LOCATION")
    if not path:
        return []
    try:
        with open(path, "rb") as file:
            return parse(file.read())
    except OSError as error:
        raise ArgumentError(
            f"HADOOP_TOKEN_FILE_LOCATION={path!r}: not readable ({error}); it must name a token file"
        ) from error


def for_service(tokens: Sequence[Token], authority: str) -> Token | None:
    """Return the HDFS token for a name service or ``host:port``; None if there is none.

    If there is only one HDFS token, it is returned regardless of its service.
    """
    found = [token for token in tokens if token.kind == HDFS_KIND]
    for token in found:
        if token.service.removeprefix("ha-hdfs:") == authority:
            return token
    return found[0] if len(found) == 1 else None


def parse(data: bytes) -> list[Token]:
    """Return the tokens of a file's content; ArgumentError for a broken one or the protobuf form."""
    if data[:4] != b"HDTS":
        raise ArgumentError("not a Hadoop token file: it does not begin with HDTS")
    if data[4:5] != b"\0":
        raise ArgumentError(f"a Hadoop token file of version {data[4:5]!r}: only version 0 is read here")
    reader = _Reader(data, 5)
    return [
        Token(reader.text(), reader.block(), reader.block(), reader.text(), reader.text())
        for _ in range(reader.number())
    ]


class _Reader:
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

    def block(self) -> bytes:
        return self._take(self.number())

    def text(self) -> str:
        return self.block().decode()

    def _take(self, count: int) -> bytes:
        piece = self._data[self._at : self._at + count]
        if count < 0 or len(piece) < count:
            raise ArgumentError(f"a Hadoop token file that ends within a token, at byte {self._at}")
        self._at += count
        return piece


def _number(value: int) -> bytes:
    if value <= 127:
        return bytes([value])
    body = value.to_bytes((value.bit_length() + 7) // 8, "big")
    return bytes([256 - 112 - len(body)]) + body
