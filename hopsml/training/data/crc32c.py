"""CRC-32C (Castagnoli), as TFRecord files have it, of many pieces of a buffer at once, by NumPy.

Without the inversions at its ends a CRC is linear, and zero bytes before the first one do not change it (Ross Williams, "A
Painless Guide to CRC Error Detection Algorithms", 1993). So each piece is filled up with zeros in front to whole blocks; the
CRCs of all blocks are exclusive-ors of table entries, column by column; and those of a piece's blocks are put together in
pairs, the left one advanced by as many zero bytes as the right one is long.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_POLYNOMIAL = 0x82F63B78  # reflected
_BLOCK_LOG2 = 6
_BLOCK = 1 << _BLOCK_LOG2  # bytes
_AT_ONCE = 4096  # blocks, which a processor's cache holds
_MASK_DELTA = 0xA282EAD8  # TFRecord's: a CRC that lies within what a CRC is made of


def masked_of_few(some: bytes) -> int:
    """TFRecord's masked CRC-32C of some bytes, without NumPy, whose calls cost more than so few do."""
    table, crc = _byte_numbers(), 0xFFFFFFFF
    for byte in some:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def masked(data: bytes, begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.uint32]:
    """TFRecord's masked CRC-32C of each of these pieces of ``data``."""
    import numpy as np

    crcs = of_pieces(data, begins, lengths)
    return ((crcs >> np.uint32(15)) | (crcs << np.uint32(17))) + np.uint32(_MASK_DELTA)


def of_pieces(data: bytes, begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.uint32]:
    """CRC-32C of each of these pieces of ``data``."""
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
    import numpy as np

    tables = _pair_tables()
    found = np.zeros(len(rows), np.uint32)
    for begin in range(0, len(rows), _AT_ONCE):
        some = found[begin : begin + _AT_ONCE]
        for table, pairs in zip(tables, rows[begin : begin + _AT_ONCE].T.astype(np.intp), strict=True):
            some ^= table.take(pairs)
    return found


def _joined(crcs: NDArray[np.uint32], blocks: NDArray[np.int64]) -> NDArray[np.uint32]:
    """For each piece, of whose blocks these are the CRCs one behind the other, the CRC of all of them."""
    import numpy as np

    found = np.zeros(len(blocks), np.uint32)
    ends = np.cumsum(blocks)
    depths = np.ceil(np.log2(blocks)).astype(int) if len(blocks) else np.zeros(0, int)
    for depth in np.unique(depths).tolist():
        pieces = np.flatnonzero(depths == depth)
        counts = blocks[pieces]
        row = np.repeat(np.arange(len(pieces)), counts)
        from_end = np.repeat(np.cumsum(counts), counts) - np.arange(counts.sum())  # 1: a piece's last block
        level = np.zeros((len(pieces), 1 << depth), np.uint32)
        level[row, (1 << depth) - from_end] = crcs[np.repeat(ends[pieces], counts) - from_end]
        for halving in range(depth):
            level = _advanced(level[:, 0::2], _BLOCK_LOG2 + halving) ^ level[:, 1::2]
        found[pieces] = level[:, 0]
    return found


def _of_beginning(lengths: NDArray[np.int64]) -> NDArray[np.uint32]:
    """What the ones with which a CRC begins become behind so many bytes."""
    import numpy as np

    different, which = np.unique(lengths, return_inverse=True)
    found = np.full(len(different), 0xFFFFFFFF, np.uint32)
    for bit in range(int(different.max(initial=0)).bit_length()):
        longer = (different >> bit & 1).astype(bool)
        found[longer] = _advanced(found[longer], bit)
    return found[which]


def _advanced(crcs: NDArray[np.uint32], zeros_log2: int) -> NDArray[np.uint32]:
    """CRCs behind ``2 ** zeros_log2`` zero bytes more."""
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
    import numpy as np

    table = np.arange(256, dtype=np.uint32)
    one = np.uint32(1)
    for _ in range(8):
        table = np.where(table & one, (table >> one) ^ np.uint32(_POLYNOMIAL), table >> one)
    return table


@functools.cache
def _byte_numbers() -> list[int]:
    return [int(entry) for entry in _byte_table()]


def _behind_a_zero(crcs: NDArray[np.uint32]) -> NDArray[np.uint32]:
    import numpy as np

    found: NDArray[np.uint32] = _byte_table()[crcs & np.uint32(0xFF)] ^ (crcs >> np.uint32(8))
    return found


@functools.cache
def _zero_tables(zeros_log2: int) -> NDArray[np.uint32]:
    """For each byte of a CRC what it becomes behind so many zero bytes."""
    import numpy as np

    if zeros_log2:
        half = _zero_tables(zeros_log2 - 1)
        return np.stack([_advanced(table, zeros_log2 - 1) for table in half])
    values = np.arange(256, dtype=np.uint32)
    return np.stack([_behind_a_zero(values << np.uint32(8 * place)) for place in range(4)])


@functools.cache
def _pair_tables() -> list[NDArray[Any]]:
    """For each two bytes of a block what they add to its CRC: 8 MiB."""
    import numpy as np

    pairs = np.arange(1 << 16, dtype=np.uint32)
    table = _behind_a_zero(_behind_a_zero(pairs))  # the first byte is the lower one, and is met first
    tables = [table]
    for _ in range(_BLOCK // 2 - 1):
        table = _behind_a_zero(_behind_a_zero(table))
        tables.append(table)
    return tables[::-1]
