"""Binary format of a commit: a description followed by the raw content of the arrays; no copies when read or written.

8 bytes length of the description · the description (msgpack) · arrays, each at a multiple of 64 bytes
"""

from __future__ import annotations

import pickle
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from hopsml.cluster.shared.commit_slots import Buffer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

VERSION = 1
_LENGTH = struct.Struct("<q")
ALIGNMENT = 64  # bytes


class _Array(msgspec.Struct, frozen=True):
    """Entry of one array in a commit's description; offset and length are in bytes."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    length: int


class _Description(msgspec.Struct, frozen=True):
    """Header of a commit."""

    version: int
    step: int
    position: dict[str, int | float]
    arrays: tuple[_Array, ...]
    values: dict[str, bytes]  # pickled


_decoder = msgspec.msgpack.Decoder(_Description)


@dataclass(frozen=True)
class Snapshot:
    """Training state after ``step`` batches: arrays by key, pickled values by name, position in the data."""

    step: int
    arrays: dict[str, NDArray[Any]]
    values: dict[str, bytes] = field(default_factory=dict)
    position: dict[str, int | float] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Approximate size in bytes."""
        return sum(array.nbytes for array in self.arrays.values()) + sum(map(len, self.values.values()))


def encode(snapshot: Snapshot) -> list[Buffer]:
    """Return the pieces of a commit in order; contiguous arrays are not copied."""
    import numpy as np

    contents: list[Buffer] = []
    described, offset = [], 0
    for key, array in snapshot.arrays.items():
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        described.append(_Array(key, _dtype_name(array.dtype), array.shape, offset, content.nbytes))
        contents.append(content)
        offset += content.nbytes
        if padding := -offset % ALIGNMENT:
            contents.append(memoryview(bytes(padding)))
            offset += padding
    head = msgspec.msgpack.encode(
        _Description(VERSION, snapshot.step, snapshot.position, tuple(described), snapshot.values)
    )
    start = bytes(-(_LENGTH.size + len(head)) % ALIGNMENT)
    return [_LENGTH.pack(len(head)), head, start, *contents]


def decode(content: memoryview) -> Snapshot:
    """Return the snapshot in an encoded commit; its arrays are views of ``content``.

    Args:
        content: the concatenated pieces of ``encode``.

    Raises:
        ValueError: it is not a commit of this version.
    """
    import numpy as np

    try:
        length = _LENGTH.unpack_from(content)[0]
        head = _decoder.decode(content[_LENGTH.size : _LENGTH.size + length])
    except (struct.error, msgspec.MsgspecError) as error:
        raise ValueError(f"not a commit: {error}") from error
    if head.version != VERSION:
        raise ValueError(f"a commit of version {head.version}; this hopsml reads version {VERSION}")
    base = _LENGTH.size + length
    base += -base % ALIGNMENT
    arrays = {
        entry.key: np.frombuffer(content, np.uint8, entry.length, base + entry.offset)
        .view(_dtype(entry.dtype))
        .reshape(entry.shape)
        for entry in head.arrays
    }
    return Snapshot(head.step, arrays, head.values, head.position)


def unpickle(value: bytes) -> Any:
    """Return a value of the user's code from its pickled form."""
    return pickle.loads(value)


def _dtype_name(dtype: np.dtype[Any]) -> str:
    """Return the name under which a type is stored."""
    return dtype.str if dtype.kind != "V" else dtype.name  # bfloat16 and float8 are identified only by name


def _dtype(name: str) -> Any:
    """Return the numpy type of a stored name, from ``ml_dtypes`` if numpy does not have it."""
    import numpy as np

    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
