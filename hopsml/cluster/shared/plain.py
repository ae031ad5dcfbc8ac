"""Conversion of a training function's arguments and result to the plain values of the run's record."""

from __future__ import annotations

import contextlib
import hashlib
import json
import pickle
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from hopsml.core import suggestions
from hopsml.search.metric import METRIC

MOST_ELEMENTS = 1000  # elements up to which an argument's array or list is recorded in full
MOST_CHARACTERS = 20_000  # characters up to which an argument's text is recorded in full


def utf8(text: str) -> str:
    """Return the text with "?" for characters that UTF-8 cannot encode, such as those of an invalid file name."""
    return text.encode(errors="replace").decode()


def result_as_dict(value: Any, log: str) -> dict[str, Any]:
    """Return the function's result as the dict that is recorded: a number becomes ``metric``, None ``metric: None``.

    Args:
        value: value that the training function returned.
        log: URL of the log, recorded as ``log``.
    """
    fields = value if isinstance(value, dict) else {METRIC: _number(value)}
    return {**{str(key): item for key, item in fields.items()}, "log": log}


def missing_metric_note(metric_key: str | None, returned: Collection[str]) -> str:
    """Return a note for a ``metric_key`` that is not among the names of the returned values; "" if it is, or is None.

    It is no error: the training has succeeded, and its result is stored.
    """
    if metric_key is None or metric_key in returned:
        return ""
    hint = suggestions.suggestion_text(metric_key, returned, f"there are: {', '.join(returned)}")
    return f"metric_key={metric_key!r} is not among the returned values, and lists of runs show another one; {hint}"


def _number(value: Any) -> Any:
    return value.item() if hasattr(value, "item") and getattr(value, "size", 1) == 1 else value


def as_json(value: Any) -> Any:
    """Return a copy of a value that JSON can represent.

    Dicts, lists and plain values are retained, NumPy's numbers and arrays become Python's, everything else becomes text.
    """
    if isinstance(value, dict):
        return {utf8(str(key)): as_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(item) for item in value]
    if isinstance(value, str):
        return utf8(value)
    if isinstance(value, (bool, int, float, type(None))):
        return value
    if hasattr(value, "tolist") and not isinstance(value, type):
        return as_json(value.tolist())
    return utf8(str(without_address(value)))


def is_opaque(value: Any) -> bool:
    """Return True for an object whose text is only its class and address, which says nothing in a record."""
    kind: Any = type(value)
    return bool(kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__)


def without_address(value: Any) -> Any:
    """Return the value; of an object without a text of its own a text with its class, without its address."""
    return f"<{_type(value)} object>" if is_opaque(value) else value


def argument_as_json(value: Any) -> Any:
    """Convert an argument of the training function for the run's record, as ``as_json`` does; summarise large values.

    For an array, tensor, table, long list or long text the record holds type, shape, data type, size in bytes and digest;
    the content is sent and stored with the function. The digest (SHA-256) covers the elements' bytes in C order, for a list
    its JSON, for a table its rows' hashes.
    """
    if isinstance(value, Mapping):
        return {utf8(str(key)): argument_as_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        if _leaves(value) <= MOST_ELEMENTS:
            return [argument_as_json(item) for item in value]
        data = json.dumps([argument_as_json(item) for item in value]).encode()
        return _described(value, [len(value)], len(data), _digest(data))
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
        return (
            as_json(value) if len(data) <= MOST_ELEMENTS else _described(value, [len(data)], len(data), _digest(data))
        )
    if isinstance(value, str):
        return _text(value, value)
    if (
        not isinstance(value, type)
        and hasattr(value, "shape")
        and (hasattr(value, "dtype") or hasattr(value, "dtypes"))
    ):
        with contextlib.suppress(TypeError, ValueError):  # a specification of an array with unknown sizes
            return _array(value)
    plain = as_json(value)
    return (
        _text(value, plain) if isinstance(plain, str) else argument_as_json(plain) if isinstance(plain, list) else plain
    )


def _leaves(value: Any) -> int:
    """Count the values in a nested list, up to a few more than ``MOST_ELEMENTS``."""
    count, waiting = 0, [value]
    while waiting and count <= MOST_ELEMENTS:
        for item in waiting.pop():
            count += 1
            if isinstance(item, (list, tuple)):
                waiting.append(item)
            if count > MOST_ELEMENTS:
                break
    return count


def _text(value: Any, text: str) -> Any:
    if len(text) <= MOST_CHARACTERS:
        return utf8(text)
    return _described(value, [len(text)], len(text.encode(errors="replace")), _digest(text.encode(errors="replace")))


def _array(value: Any) -> Any:
    """Return the elements of a small array, tensor or table (NumPy, JAX, pandas, torch, TensorFlow), or a summary."""
    shape = [int(size) for size in value.shape]
    count = 1
    for size in shape:
        count *= size
    if count <= MOST_ELEMENTS and hasattr(value, "tolist"):
        return as_json(value)
    dtypes = value.dtypes if hasattr(value, "dtypes") and hasattr(value, "columns") else None
    dtype: Any = str(value.dtype) if dtypes is None else {str(name): str(kind) for name, kind in _columns(value)}
    try:
        pieces = list(_content(value))
        size_bytes, digest = sum(len(piece) for piece in pieces), _digest(*pieces)
    except Exception as error:  # noqa: BLE001 a library's object may refuse, and a record must not fail
        return {"type": _type(value), "shape": shape, "dtype": dtype, "sha256": f"unknown: {type(error).__name__}"}
    return {**_described(value, shape, size_bytes, digest), "dtype": dtype}


def _columns(table: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the name and data type of each column of a table of pandas or polars."""
    return zip(table.columns, table.dtypes, strict=False)


def _content(value: Any) -> Iterator[memoryview | bytes]:
    """Yield the bytes of an array or a table that identify its content."""
    import numpy as np

    package = type(value).__module__.partition(".")[0]
    if package == "pandas":
        import pandas as pd

        yield pd.util.hash_pandas_object(value, index=True).to_numpy().tobytes()
        yield repr(list(getattr(value, "columns", ()))).encode()
        return
    if package == "torch":
        import torch

        value = value.detach().cpu().contiguous().view(-1).view(torch.uint8)
    found = np.asarray(value)
    if found.dtype.hasobject:
        yield pickle.dumps(found.tolist())
    else:
        yield np.ascontiguousarray(found).reshape(-1).view(np.uint8).data


def _described(value: Any, shape: list[int], size_bytes: int, digest: str) -> dict[str, Any]:
    return {"type": _type(value), "shape": shape, "bytes": size_bytes, "sha256": digest}


def _type(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _digest(*pieces: bytes | memoryview) -> str:
    """Return the SHA-256 digest of the pieces."""
    found = hashlib.sha256()
    for piece in pieces:
        found.update(piece)
    return found.hexdigest()
