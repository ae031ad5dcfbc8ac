"""Framing of TFRecord files: byte offsets of the records, and verification of their checksums.

A record is its length (8 bytes, little-endian), the masked CRC-32C of these, the record, and its masked CRC-32C
(tensorflow/core/lib/io/record_writer.h).
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hopsml.errors import StorageError
from hopsml.training.data import crc32c

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

HEADER, FOOTER = 12, 4  # bytes before and after a record
BEGINNING = 1 << 16  # bytes that are read for a first record; a larger record takes a second request
_PIECE = 1 << 20  # bytes that are read together of small records
_LENGTH, _CRC = struct.Struct("<Q"), struct.Struct("<I")
_GZIP = b"\x1f\x8b\x08"

Read = Callable[[int, int], bytes]  # offset, length


@dataclass(frozen=True)
class RecordSpan:
    """Byte range of successive records of a file that are read together."""

    begin: int  # byte offset of the first record's length field
    end: int
    first: int  # number of the first record in its file
    rows: int


def is_gzip(beginning: bytes) -> bool:
    """Return True if a file with this beginning is GZIP-compressed.

    The length checksum rules out a TFRecord of such a length.
    """
    return beginning.startswith(_GZIP) and not _is_length(beginning)


def decompressed(content: bytes, url: str) -> bytes:
    """Return the whole content of a GZIP file. Raises StorageError with its URL."""
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise StorageError(f"{url} is no whole GZIP file: {error}; write it anew", url) from error


def spans(read: Read, length: int, most_bytes: int, url: str) -> list[RecordSpan]:
    """Split a file's records into spans of about ``most_bytes``; of large records only the lengths are read.

    Args:
        read: reads (offset, length) of the file.
        length: bytes of the file.
        most_bytes: size from which on a span ends.
        url: of the file, for messages.

    Raises:
        StorageError: a length is damaged, or the file is truncated; the message names the file, the record and its byte
            offset.
    """
    found, begin, first, at, number = list[RecordSpan](), 0, 0, 0, 0
    for number, at in enumerate(_ends(read, length, url), 1):
        if at - begin >= most_bytes:
            found.append(RecordSpan(begin, at, first, number - first))
            begin, first = at, number
    if at > begin:
        found.append(RecordSpan(begin, at, first, number - first))
    return found


def _ends(read: Read, length: int, url: str) -> Iterator[int]:
    """Yield the byte offset of the end of each record."""
    at, number, piece, piece_at = 0, 0, b"", 0
    while at < length:
        if length - at < HEADER:
            raise _cut_off(url, number, at, length)
        if at + HEADER > piece_at + len(piece):
            is_small = at <= number * (_PIECE // 4) or not number
            piece_at, piece = at, read(at, min(_PIECE if is_small else HEADER, length - at))
        header = piece[at - piece_at : at - piece_at + HEADER]
        if not _is_length(header):
            raise _damaged(url, number, at, "the checksum of its length is another one")
        size = HEADER + _LENGTH.unpack_from(header)[0] + FOOTER
        if size > length - at:
            raise _cut_off(url, number, at, length)
        at += size
        number += 1
        yield at


def records(content: bytes, span: RecordSpan, url: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the offset of each record within a span's content, and its length.

    Raises:
        StorageError: a record is damaged, or the span does not have the records that it had.
    """
    import numpy as np

    begins, lengths, at = list[int](), list[int](), 0
    while at + HEADER <= len(content):
        (size,) = _LENGTH.unpack_from(content, at)
        begins.append(at + HEADER)
        lengths.append(size)
        at += HEADER + size + FOOTER
    if at != len(content) or len(begins) != span.rows:
        raise StorageError(
            f"{url} was changed while it was read: between bytes {span.begin} and {span.end} are other records than there "
            "were; write new data under a new name",
            url,
        )
    where, sizes = np.array(begins, np.int64), np.array(lengths, np.int64)
    if (bad := _first_damaged(content, where, sizes)) is not None:
        offset = span.begin + begins[bad] - HEADER
        raise _damaged(url, span.first + bad, offset, "its content and its checksum do not agree")
    return where, sizes


def first(read: Read, span: RecordSpan, url: str) -> bytes:
    """Return the first record of a span. Raises StorageError, as ``records`` does."""
    content = read(span.begin, min(BEGINNING, span.end - span.begin))
    size = end_of_first(content)
    content = content[:size] if size <= len(content) else read(span.begin, size)
    records(content, RecordSpan(span.begin, span.begin + size, span.first, 1), url)
    return content[HEADER:-FOOTER]


def end_of_first(content: bytes) -> int:
    """Return the byte offset of the end of the first record, which may lie beyond ``content``."""
    return HEADER + int(_LENGTH.unpack_from(content)[0]) + FOOTER


def _first_damaged(content: bytes, begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> int | None:
    """Return the index of the first record with a wrong checksum; None if all are right."""
    import numpy as np

    bad = np.zeros(len(begins), bool)
    for at, sizes in ((begins - HEADER, np.full_like(lengths, _LENGTH.size)), (begins, lengths)):
        behind = (at + sizes)[:, None] + np.arange(_CRC.size)
        told = np.frombuffer(content, np.uint8)[behind].view("<u4")[:, 0]
        bad |= crc32c.masked(content, at, sizes) != told
    return int(bad.argmax()) if bad.any() else None


def _is_length(header: bytes) -> bool:
    """Return True if a record's header has the right checksum of its length."""
    return (
        len(header) >= HEADER
        and crc32c.masked_of_few(header[: _LENGTH.size]) == _CRC.unpack_from(header, _LENGTH.size)[0]
    )


def _damaged(url: str, number: int, offset: int, why: str) -> StorageError:
    """Return the error for a damaged record."""
    return StorageError(
        f"{url}: record {number} (counted from 0), at byte {offset}, is damaged, or the file holds no TFRecords: {why}; "
        "write the file anew",
        url,
    )


def _cut_off(url: str, number: int, offset: int, length: int) -> StorageError:
    """Return the error for a truncated file."""
    return StorageError(
        f"{url} ends after {length} bytes, within record {number} (counted from 0), which begins at byte {offset}: it was "
        "cut off, or is still being written; write it anew",
        url,
    )
