"""Flavor of exported files: their artifacts are derived from the file names."""

from __future__ import annotations

from pathlib import Path

from hopsml.model.flavors import onnx
from hopsml.model.flavors.contract import SavedModel

_BY_SUFFIX = {".keras": ("keras", "keras"), ".onnx": ("onnx", "onnx"), ".pt2": ("torch", "torch_export")}


def detect_flavor(folder: Path) -> tuple[str, SavedModel]:
    """Return the flavor of a folder's files, ``files`` if it is unknown, and what can be loaded from it."""
    for place in (folder, folder / "saved_model"):
        if (place / "saved_model.pb").is_file():
            return "tensorflow", SavedModel({"saved_model": "" if place == folder else "saved_model"})
    found = [path.name for path in folder.iterdir() if path.suffix in _BY_SUFFIX]
    if len(found) == 1:
        flavor, artifact = _BY_SUFFIX[Path(found[0]).suffix]
        return flavor, SavedModel(
            {artifact: found[0]}, onnx.signature_of(folder / found[0]) if flavor == "onnx" else None
        )
    return "files", SavedModel({})
