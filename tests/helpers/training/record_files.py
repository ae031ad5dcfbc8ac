"""Writer of TFRecord files of ``tf.train.Example``, independent of TensorFlow and of hopsml's reader."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any


def crc32c(data: bytes) -> int:
    """Return the CRC, computed bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def framed(record: bytes) -> bytes:
    length = struct.pack("<Q", len(record))
    return length + masked(length) + record + masked(record)


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def feature(values: Sequence[Any], is_packed: bool = True) -> bytes:
    """Encode bytes, floats or integers; no values give a feature without a kind."""
    if not values:
        return b""
    if isinstance(values[0], bytes):
        return field(1, b"".join(field(1, value) for value in values))
    if isinstance(values[0], float):
        parts = [struct.pack("<f", value) for value in values]
        return field(2, field(1, b"".join(parts)) if is_packed else b"".join(b"\x0d" + part for part in parts))
    parts = [varint(value) for value in values]
    return field(3, field(1, b"".join(parts)) if is_packed else b"".join(b"\x08" + part for part in parts))


def example(values: Mapping[str, Any], is_packed: bool = True) -> bytes:
    """Encode features, each a list or a single value."""
    lists = {name: value if isinstance(value, list) else [value] for name, value in values.items()}
    entries = (field(1, name.encode()) + field(2, feature(value, is_packed)) for name, value in lists.items())
    return field(1, b"".join(field(1, entry) for entry in entries))


def content(rows: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(framed(example(row)) for row in rows)


def write(file: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content(rows))
    return file
