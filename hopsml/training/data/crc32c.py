"""CRC-32C (Castagnoli) of many pieces of a buffer at once, with NumPy; TFRecord files use it.

Without the inversions at its start and end a CRC is linear, and leading zero bytes do not change it (Ross Williams, "A
Painless Guide to CRC Error Detection Algorithms", 1993). Each piece is padded in front with zeros to whole blocks. The
CRCs of all blocks are computed column by column as exclusive-ors of table entries. The CRCs of a piece's blocks are
combined in pairs, the left one advanced by as many zero bytes as the right one is long.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_POLYNOMIAL = 0x82F63B78  # bit-reflected
_BLOCK_LOG2 = 6
_BLOCK = 1 << _BLOCK_LOG2  # bytes
_AT_ONCE = 4096  # blocks, which fit in a processor's cache
_MASK_DELTA = 0xA282EAD8  # TFRecord masks CRCs because they are stored within data that is itself checksummed


def masked_of_few(some: bytes) -> int:
    """Return TFRecord's masked CRC-32C of a short byte string, without NumPy, whose calls would cost more."""
    table, crc = _byte_numbers(), 0xFFFFFFFF
    for byte in some:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def masked(data: bytes, begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return TFRecord's masked CRC-32C of each piece of ``data``.

    Args:
        data: the buffer.
        begins: byte offset of each piece.
        lengths: bytes of each piece.
    """
    import numpy as np

    crcs = of_pieces(data, begins, lengths)
    return ((crcs >> np.uint32(15)) | (crcs << np.uint32(17))) + np.uint32(_MASK_DELTA)


def of_pieces(data: bytes, begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return the CRC-32C of each piece of ``data``.

    Args:
        data: the buffer.
        begins: byte offset of each piece.
        lengths: bytes of each piece.
    """
    import numpy as np

    zeros, parts = bytes(_BLOCK), list[bytes | memoryview]()
    view = memoryview(data)
    for begin, length in zip(begins.tolist(), lengths.tolist(), strict=True):
        parts.append(zeros[: -length % _BLOCK if length else _BLOCK])
        parts.append(view[begin : begin + length])
    blocks = np.maximum(1, -(-lengths // _BLOCK))
    crcs = _of_blocks(np.frombuffer(b"".join(parts), "<u2").reshape(-1, _BLOCK // 2))
    return ~(_joined(crcs, blocks) ^ _of_beginning(lengths))


def _of_blocks(rows: NDArray[np.uint16]) -> NDArray[np.uint32]:
    """Return the CRC of each block, without inversions and starting from 0."""
    import numpy as np

    tables = _pair_tables()
    found = np.zeros(len(rows), np.uint32)
    for begin in range(0, len(rows), _AT_ONCE):
        some = found[begin : begin + _AT_ONCE]
        for table, pairs in zip(tables, rows[begin : begin + _AT_ONCE].T.astype(np.intp), strict=True):
            some ^= table.take(pairs)
    return found


def _joined(crcs: NDArray[np.uint32], blocks: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Combine the CRCs of successive blocks into one CRC for each piece, which has ``blocks[i]`` blocks."""
    import numpy as np

    found = np.zeros(len(blocks), np.uint32)
    ends = np.cumsum(blocks)
    depths = np.ceil(np.log2(blocks)).astype(int) if len(blocks) else np.zeros(0, int)
    for depth in np.unique(depths).tolist():
        pieces = np.flatnonzero(depths == depth)
        counts = blocks[pieces]
        row = np.repeat(np.arange(len(pieces)), counts)
        from_end = np.repeat(np.cumsum(counts), counts) - np.arange(counts.sum())  # 1 for the last block of a piece
        level = np.zeros((len(pieces), 1 << depth), np.uint32)
        level[row, (1 << depth) - from_end] = crcs[np.repeat(ends[pieces], counts) - from_end]
        for halving in range(depth):
            level = _advanced(level[:, 0::2], _BLOCK_LOG2 + halving) ^ level[:, 1::2]
        found[pieces] = level[:, 0]
    return found


def _of_beginning(lengths: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return what a CRC's initial value of all ones contributes after this many bytes, for each length."""
    import numpy as np

    different, which = np.unique(lengths, return_inverse=True)
    found = np.full(len(different), 0xFFFFFFFF, np.uint32)
    for bit in range(int(different.max(initial=0)).bit_length()):
        longer = (different >> bit & 1).astype(bool)
        found[longer] = _advanced(found[longer], bit)
    return found[which]


def _advanced(crcs: NDArray[np.uint32], zeros_log2: int) -> NDArray[np.uint32]:
    """Return the CRCs advanced by ``2 ** zeros_log2`` zero bytes."""
    import numpy as np

    first, second, third, fourth = _zero_tables(zeros_log2)
    low, byte = np.uint32(0xFF), np.uint32(8)
    above = crcs >> byte
    found: NDArray[np.uint32] = first[crcs & low] ^ second[above & low]
    above = above >> byte
    found ^= third[above & low] ^ fourth[above >> byte]
    return found


@functools.cache
def _byte_table() -> NDArray[np.uint32]:
    """Return the usual table of a CRC's change by each byte."""
    import numpy as np

    table = np.arange(256, dtype=np.uint32)
    one = np.uint32(1)
    for _ in range(8):
        table = np.where(table & one, (table >> one) ^ np.uint32(_POLYNOMIAL), table >> one)
    return table


@functools.cache
def _byte_numbers() -> list[int]:
    """Return the table of ``_byte_table`` as Python integers."""
    return [int(entry) for entry in _byte_table()]


def _behind_a_zero(crcs: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return the CRCs advanced by one zero byte."""
    import numpy as np

    found: NDArray[np.uint32] = _byte_table()[crcs & np.uint32(0xFF)] ^ (crcs >> np.uint32(8))
    return found


@functools.cache
def _zero_tables(zeros_log2: int) -> NDArray[np.uint32]:
    """Return, for each byte of a CRC, the table of its contribution after ``2 ** zeros_log2`` zero bytes."""
    import numpy as np

    if zeros_log2:
        half = _zero_tables(zeros_log2 - 1)
        return np.stack([_advanced(table, zeros_log2 - 1) for table in half])
    values = np.arange(256, dtype=np.uint32)
    return np.stack([_behind_a_zero(values << np.uint32(8 * place)) for place in range(4)])


@functools.cache
def _pair_tables() -> list[NDArray[Any]]:
    """Return, for each two-byte column of a block, the table of its contribution to the block's CRC: 8 MiB in all."""
    import numpy as np

    pairs = np.arange(1 << 16, dtype=np.uint32)
    table = _behind_a_zero(_behind_a_zero(pairs))  # the first byte is the low one, and is processed first
    tables = [table]
    for _ in range(_BLOCK // 2 - 1):
        table = _behind_a_zero(_behind_a_zero(table))
        tables.append(table)
    return tables[::-1]
