"""Keras 3's files of a model, apart from the objects in it: what one would hold, and writing that in another process.

Keras walks through a model and has each object put its arrays into a store. Here the store notes them; whoever writes the
file plays them into Keras's own store, which alone knows the format.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopsml.training.tensorflow.state_variables import as_array

if TYPE_CHECKING:
    from numpy.typing import NDArray

_GROUPS, _ARCHIVE = (
    "groups",
    "archive",
)  # beside the arrays: paths, metadata and names; a model's file but for its weights


def read(model: Any, whole: bool) -> dict[str, NDArray[Any]]:
    """What Keras would write of ``model``, or of its weights alone; on CPU variables are not copied.

    On all ranks: each variable is read once, in Keras's order.
    """
    import numpy as np
    from keras.src.saving import saving_lib

    class NotingStore(saving_lib.NpzIOStore):  # type: ignore[misc] # Keras takes its own alone
        def make(self, path: str, metadata: dict[str, str] | None = None) -> dict[str, Any]:
            entry = NotedArrays()
            groups.append((path, metadata, entry))
            return entry

    groups: list[tuple[str, dict[str, str] | None, NotedArrays]] = []
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        assets = None
        if whole:
            config, metadata = saving_lib._serialize_model_as_json(model)
            archive.writestr("metadata.json", metadata)
            archive.writestr("config.json", config)
            assets = saving_lib.DiskIOStore("assets", archive=archive, mode="w")
        saving_lib._save_state(model, NotingStore("", mode="w"), assets, inner_path="", visited_saveables=set())
        if assets is not None:
            assets.close()
    table = json.dumps([(path, about, list(entry)) for path, about, entry in groups]).encode()
    arrays = {f"{number}/{name}": array for number, (_, _, entry) in enumerate(groups) for name, array in entry.items()}
    rest = {_GROUPS: table} | ({_ARCHIVE: content.getvalue()} if whole else {})
    return arrays | {key: np.frombuffer(value, np.uint8) for key, value in rest.items()}


def write(place: str, arrays: dict[str, NDArray[Any]]) -> None:
    """Write what ``read`` has found as the file ``place``; the arrays of a whole model lie beside it for a moment."""
    from keras.src.saving import saving_lib

    weights = f"{place}.weights" if _ARCHIVE in arrays else place
    store = saving_lib.H5IOStore(weights, mode="w")
    for number, (path, metadata, names) in enumerate(json.loads(arrays[_GROUPS].tobytes())):
        entry = store.make(path, metadata=metadata)
        for name in names:
            entry[name] = arrays[f"{number}/{name}"]
    store.close()
    if _ARCHIVE in arrays:
        Path(place).write_bytes(arrays[_ARCHIVE].data)
        with zipfile.ZipFile(place, "a") as archive:
            archive.write(weights, "model.weights.h5")
        os.unlink(weights)


class NotedArrays(dict[str, Any]):
    """What one object puts into the store: arrays as they are at this moment."""

    def __setitem__(self, name: str, value: Any) -> None:
        import tensorflow as tf
        from keras.src import backend

        if isinstance(value, backend.Variable):
            value = value.value.read_value()
        super().__setitem__(name, as_array(value) if isinstance(value, tf.Tensor) else backend.convert_to_numpy(value))
