"""TFRecord files: where their records lie, and whether they are whole.

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

HEADER, FOOTER = 12, 4  # bytes before and behind a record
BEGINNING = 1 << 16  # bytes that are read for a first record: one that is larger takes another request
_PIECE = 1 << 20  # bytes that are read at once of small records
_LENGTH, _CRC = struct.Struct("<Q"), struct.Struct("<I")
_GZIP = b"\x1f\x8b\x08"

Read = Callable[[int, int], bytes]  # offset, length


@dataclass(frozen=True)
class RecordSpan:
    """Successive records of a file that are read together."""

    begin: int  # of the first one's length, in bytes
    end: int
    first: int  # the first one's number in its file
    rows: int


def is_gzip(beginning: bytes) -> bool:
    """Whether a file that begins so is compressed; a record of such a length has a checksum that tells it apart."""
    return beginning.startswith(_GZIP) and not _is_length(beginning)


def decompressed(content: bytes, url: str) -> bytes:
    """All of a compressed file. Raises StorageError naming it."""
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise StorageError(f"{url} is no whole GZIP file: {error}; write it anew", url) from error


def spans(read: Read, length: int, most_bytes: int, url: str) -> list[RecordSpan]:
    """A file's records in parts of about ``most_bytes``; of large ones nothing but the lengths is read.

    Raises StorageError naming the file, the record and its place for a length that is damaged, or a file that ends early.
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
    """Where each record ends."""
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
    """Where each record of a span begins in its content, and its length. Raises StorageError for one that is damaged."""
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
    """A span's first record. Raises StorageError as ``records``."""
    content = read(span.begin, min(BEGINNING, span.end - span.begin))
    size = end_of_first(content)
    content = content[:size] if size <= len(content) else read(span.begin, size)
    records(content, RecordSpan(span.begin, span.begin + size, span.first, 1), url)
    return content[HEADER:-FOOTER]


def end_of_first(content: bytes) -> int:
    """Return the byte offset of the end of the first record, which may lie beyond ``content``."""
    return HEADER + int(_LENGTH.unpack_from(content)[0]) + FOOTER


def _first_damaged(content: bytes, begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> int | None:
    import numpy as np

    bad = np.zeros(len(begins), bool)
    for at, sizes in ((begins - HEADER, np.full_like(lengths, _LENGTH.size)), (begins, lengths)):
        behind = (at + sizes)[:, None] + np.arange(_CRC.size)
        told = np.frombuffer(content, np.uint8)[behind].view("<u4")[:, 0]
        bad |= crc32c.masked(content, at, sizes) != told
    return int(bad.argmax()) if bad.any() else None


def _is_length(header: bytes) -> bool:
    return (
        len(header) >= HEADER
        and crc32c.masked_of_few(header[: _LENGTH.size]) == _CRC.unpack_from(header, _LENGTH.size)[0]
    )


def _damaged(url: str, number: int, offset: int, why: str) -> StorageError:
    return StorageError(
        f"{url}: record {number} (counted from 0), at byte {offset}, is damaged, or the file holds no TFRecords: {why}; "
        "write the file anew",
        url,
    )


def _cut_off(url: str, number: int, offset: int, length: int) -> StorageError:
    return StorageError(
        f"{url} ends after {length} bytes, within record {number} (counted from 0), which begins at byte {offset}: it was "
        "cut off, or is still being written; write it anew",
        url,
    )
