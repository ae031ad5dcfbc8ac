"""Writer of TensorBoard's event files with scalars, without TensorFlow or TensorBoard. No side effects.

A file is a sequence of records in TFRecord's format (length, its masked CRC-32C, the bytes, theirs), each a protocol
buffer ``Event``; the first contains the version. Fields by their numbers in TensorBoard's ``event.proto`` and
``summary.proto``.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Mapping
from typing import Any

VERSION = b"brain.Event:2"
_CASTAGNOLI = 0x82F63B78  # the polynomial, its bits reversed
_MASK = 0xA282EAD8  # added so that a checksum of data that contains checksums remains reliable
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5  # kinds of fields on the wire


def scalars(values: Mapping[str, Any], step: int, time_s: float) -> bytes:
    """Return an event file with the numbers among some values at one step; ``time_s`` is seconds since 1970."""
    numbers = {
        name: value for name, value in values.items() if isinstance(value, int | float) and not isinstance(value, bool)
    }
    wall_time = _key(1, _EIGHT_BYTES) + struct.pack("<d", time_s)
    summary = b"".join(_bytes(1, _scalar(name, float(value))) for name, value in numbers.items())
    events = [wall_time + _bytes(3, VERSION), wall_time + _key(2, _VARINT) + _varint(step) + _bytes(5, summary)]
    return b"".join(map(_record, events))


def _scalar(tag: str, value: float) -> bytes:
    try:
        packed = struct.pack("<f", value)
    except OverflowError:  # beyond a 32-bit float
        packed = struct.pack("<f", math.copysign(math.inf, value))
    return _bytes(1, tag.encode()) + _key(2, _FOUR_BYTES) + packed


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _masked_crc(length) + data + _masked_crc(data)


def _key(field: int, kind: int) -> bytes:
    return _varint(field << 3 | kind)


def _bytes(field: int, data: bytes) -> bytes:
    return _key(field, _BYTES) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def _masked_crc(data: bytes) -> bytes:
    crc, table = 0xFFFFFFFF, _table()
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF)


@functools.cache
def _table() -> tuple[int, ...]:
    found = []
    for entry in range(256):
        for _ in range(8):
            entry = entry >> 1 ^ _CASTAGNOLI if entry & 1 else entry >> 1
        found.append(entry)
    return tuple(found)
