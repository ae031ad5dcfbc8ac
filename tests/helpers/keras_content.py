"""Comparison of Keras files by their contents."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any


def of(path: Path) -> dict[str, Any]:
    """Return arrays and attributes by path, and members of the archive by name, without times."""
    if path.suffix != ".keras":
        return _of_arrays(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        members = {name: archive.read(name) for name in archive.namelist()}
    described = json.loads(members.pop("metadata.json"))
    del described["date_saved"]
    return {**_of_arrays(members.pop("model.weights.h5")), **members, "metadata": described}


def _of_arrays(content: bytes) -> dict[str, Any]:
    import h5py  # type: ignore[import-untyped]

    found: dict[str, Any] = {}

    def visit(name: str, node: Any) -> None:
        attributes = dict(node.attrs)
        is_array = hasattr(node, "dtype")
        found[name] = (attributes, str(node.dtype), node.shape, node[()].tobytes()) if is_array else attributes

    with h5py.File(io.BytesIO(content)) as file:
        file.visititems(visit)
    return found
