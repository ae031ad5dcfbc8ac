"""Reader of Hadoop's TFile, the format in which YARN stores the logs of applications that have ended.

From the end: 16 bytes of magic, 4 of version, 8 with the offset of the list of named blocks. One of those,
BCFile.index, lists the data blocks; each is compressed as a whole and contains records: a key, then a value in chunks.
"""

from __future__ import annotations

import math
import os
import struct
import sys
import time
import zlib
from collections.abc import Iterator
from typing import BinaryIO

MAGIC = bytes.fromhex("d111d36891b5d7b639df414092bae150")
_CHUNK_BYTES = 1 << 20
_MOST_NAMED, _MOST_NAME_BYTES = 1000, 64 << 10  # Hadoop writes three blocks with names, and containers' ids
_MOST_INDEX_BYTES = 16 << 20  # of a million blocks
MOST_SKIPPED_BYTES = 32 << 30  # unpacked bytes that are skipped in search of a log
SEARCH_S = 30.0  # seconds for that search: users of the job service write the files that it searches


class FormatError(ValueError):
    """Error for a file that is no TFile, or uses an unsupported variant; the text names which."""


class SearchLimit:
    """Bound on what is unpacked and read in search of a log: a small file may be of terabytes, or of very many records."""

    def __init__(self) -> None:
        self._left_bytes, self._until = MOST_SKIPPED_BYTES, time.monotonic() + SEARCH_S

    def count_skipped(self, skipped: int = 0) -> None:
        """Account for ``skipped`` bytes that were unpacked in vain. Raises FormatError."""
        self._left_bytes -= skipped
        if self._left_bytes < 0 or time.monotonic() > self._until:
            raise FormatError(
                f"the search in the file stopped after {SEARCH_S:g} s, or {MOST_SKIPPED_BYTES >> 30} GiB of other logs"
            )

    def remove_limit(self) -> None:
        """End the bound: the log is found, and whoever reads it takes as much as they want."""
        self._left_bytes, self._until = sys.maxsize, math.inf


def read_records(file: BinaryIO, effort: SearchLimit | None = None) -> Iterator[tuple[bytes, Value]]:
    """Yield key and value of every record, in order; a value can be read until the next record is requested.

    Args:
        file: seekable file.
        effort: bound on the search; by default a new one.

    Raises:
        FormatError: it is no TFile, or the search takes too much.
    """
    effort = SearchLimit() if effort is None else effort
    blocks = _named_blocks(file, effort)
    if "BCFile.index" not in blocks:
        raise FormatError("the file lists no data blocks")
    codec, region = blocks["BCFile.index"]
    if region[2] > _MOST_INDEX_BYTES:
        raise FormatError(f"the file's list of data blocks has {region[2]} bytes")
    index = _block(file, codec, region, effort)
    codec = _string(index)
    for _ in range(_integer(index)):
        block = _block(file, codec, _region(index), effort)
        while not block.is_at_end():
            key = block.read_exactly(_short(_integer(block)))
            value = Value(block)
            yield key, value
            value.skip_rest()


class Block:
    """Bytes of one block, from ``start`` to ``end`` of a seekable file."""

    def __init__(self, file: BinaryIO | _Inflated, start: int, end: int, effort: SearchLimit) -> None:
        if not 0 <= start <= end:
            raise FormatError(f"the file lists a block from byte {start} to {end}")
        self._file, self._at, self._end, self._effort = file, start, end, effort

    def is_at_end(self) -> bool:
        """Return True if all bytes of the block have been read."""
        return self._at >= self._end

    def read_exactly(self, count: int) -> bytes:
        """Return the next ``count`` bytes.

        Raises:
            FormatError: if there are fewer.
        """
        if not 0 <= count <= self._end - self._at:
            raise FormatError(f"a block of the file ends {count} bytes before its recorded length")
        self._effort.count_skipped()
        self._file.seek(self._at)
        pieces = []
        while count:
            piece = self._file.read(min(count, _CHUNK_BYTES))
            if not piece:
                raise FormatError("the file ends within a block")
            pieces.append(piece)
            self._at += len(piece)
            count -= len(piece)
        return b"".join(pieces)

    def skip(self, count: int) -> None:
        """Skip ``count`` bytes without reading them.

        Raises:
            FormatError: if there are fewer.
        """
        if not 0 <= count <= self._end - self._at:
            raise FormatError("a block of the file ends within a value")
        self._at += count


class Value:
    """Value of a record: chunks, each preceded by its length, which is negative if another chunk follows."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._left, self._last = 0, False

    def read(self, count: int) -> bytes:
        """Return up to ``count`` bytes; fewer only at the end of the value."""
        pieces = []
        while count and self._more():
            piece = self._block.read_exactly(min(count, self._left))
            pieces.append(piece)
            self._left -= len(piece)
            count -= len(piece)
        return b"".join(pieces)

    def skip(self, count: int) -> None:
        """Skip ``count`` bytes, or as many as remain."""
        while count and self._more():
            step = min(count, self._left)
            self._block.skip(step)
            self._left -= step
            count -= step

    def skip_rest(self) -> None:
        """Skip all remaining bytes of the value."""
        while self._more():
            self.skip(self._left)

    def _more(self) -> bool:
        """Read the header of the next chunk if needed; return False at the end of the value."""
        while not self._left and not self._last:
            length = _integer(self._block)
            self._left, self._last = abs(length), length >= 0
        return self._left > 0


def _named_blocks(file: BinaryIO, effort: SearchLimit) -> dict[str, tuple[str, tuple[int, int, int]]]:
    """Return codec and region of every block other than data blocks, by name."""
    length = file.seek(0, os.SEEK_END)
    tail = Block(file, max(0, length - 28), length, effort).read_exactly(min(length, 28))
    if len(tail) < 28 or tail[12:] != MAGIC:
        raise FormatError("not a TFile")
    listing = Block(file, struct.unpack(">q", tail[:8])[0], length - 28, effort)
    found = {}
    for _ in range(min(_integer(listing), _MOST_NAMED)):
        name, codec = _string(listing), _string(listing)
        found[name.removeprefix("data:")] = codec, _region(listing)
    return found


def _block(file: BinaryIO, codec: str, region: tuple[int, int, int], effort: SearchLimit) -> Block:
    """Return the decompressed bytes of a block."""
    offset, length, raw_length = region
    stored = Block(file, offset, offset + length, effort)
    if codec == "none":
        return stored
    if codec != "gz":
        raise FormatError(f"the file is compressed with {codec!r}; only none and gz can be read here")
    return Block(_Inflated(stored, length, effort), 0, raw_length, effort)


class _Inflated:
    """The content of a compressed block, decompressed as it is read: a few kilobytes may be of terabytes."""

    def __init__(self, stored: Block, length: int, effort: SearchLimit) -> None:
        self._stored, self._left, self._effort = stored, length, effort
        self._inflate = zlib.decompressobj(zlib.MAX_WBITS | 32)  # by its head: zlib or gzip
        self._at = 0

    def seek(self, at: int, /) -> None:
        """Go forward to a position. Raises FormatError."""
        while self._at < at:
            if not (skipped := self.read(min(_CHUNK_BYTES, at - self._at))):
                raise FormatError("the file ends within a block")
            self._effort.count_skipped(len(skipped))

    def read(self, count: int, /) -> bytes:
        """Return the next bytes, at most so many; none at the end. Raises FormatError."""
        data = b""
        while not data and not self._inflate.eof:
            fresh = self._inflate.unconsumed_tail
            if not fresh and self._left:
                fresh = self._stored.read_exactly(min(_CHUNK_BYTES, self._left))
                self._left -= len(fresh)
            if not fresh:
                break
            try:
                data = self._inflate.decompress(fresh, count)
            except zlib.error as error:
                raise FormatError(f"a block of the file cannot be decompressed: {error}") from error
        self._at += len(data)
        return data


def _region(block: Block) -> tuple[int, int, int]:
    """Read a region: offset, stored length and raw length."""
    return _integer(block), _integer(block), _integer(block)


def _string(block: Block) -> str:
    return block.read_exactly(_short(_integer(block))).decode(errors="replace")


def _short(length: int) -> int:
    if length > _MOST_NAME_BYTES:
        raise FormatError(f"a name in the file has {length} bytes")
    return length


def _integer(block: Block) -> int:
    """Read a number of one to nine bytes.

    The first byte gives the number of further ones, and the highest bits of small numbers.
    """
    first = int.from_bytes(block.read_exactly(1), "big", signed=True)
    if first >= -32:
        return first
    if first >= -72:
        return (first + 52) << 8 | int.from_bytes(block.read_exactly(1), "big")
    if first >= -104:
        return (first + 88) << 16 | int.from_bytes(block.read_exactly(2), "big")
    if first >= -120:
        return (first + 112) << 24 | int.from_bytes(block.read_exactly(3), "big")
    return int.from_bytes(block.read_exactly(first + 129), "big", signed=True)
