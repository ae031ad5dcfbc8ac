"""How a commit is laid out: a description, then the raw content of the arrays; written and read without copies.

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
    key: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    length: int


class _Description(msgspec.Struct, frozen=True):
    version: int
    step: int
    position: dict[str, int | float]
    arrays: tuple[_Array, ...]
    values: dict[str, bytes]  # pickled


_decoder = msgspec.msgpack.Decoder(_Description)


@dataclass(frozen=True)
class Snapshot:
    """The training state after ``step`` batches: arrays by key, pickled values by name, the data's position."""

    step: int
    arrays: dict[str, NDArray[Any]]
    values: dict[str, bytes] = field(default_factory=dict)
    position: dict[str, int | float] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes, about."""
        return sum(array.nbytes for array in self.arrays.values()) + sum(map(len, self.values.values()))


def encode(snapshot: Snapshot) -> list[Buffer]:
    """The pieces of a commit in order; arrays are not copied."""
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
    """The opposite; the arrays are views of ``content``. Raises ValueError where it is not a commit of this version."""
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
    """A value as the user's code had it."""
    return pickle.loads(value)


def _dtype_name(dtype: np.dtype[Any]) -> str:
    return dtype.str if dtype.kind != "V" else dtype.name  # bfloat16 and float8 have names alone


def _dtype(name: str) -> Any:
    import numpy as np

    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
