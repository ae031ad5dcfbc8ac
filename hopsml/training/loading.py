"""Loading of objects from a checkpoint's folder outside training (``hopsml.load_checkpoint``), as evaluators do.

A folder holds what a ``State`` has committed (``state.hopsml``), or what a ``Checkpointer`` has saved
(``checkpoint.json`` and TensorFlow's files). This module alone reads both without a run, and can load a part of what
was saved.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopsml.errors import ArgumentError
from hopsml.storage import trust
from hopsml.storage.checkpoints import STATE_FILE, UNPICKLED
from hopsml.storage.filesystem import read_record
from hopsml.training import checkpoint_files
from hopsml.training.elastic import commits
from hopsml.training.elastic.commits import Snapshot
from hopsml.training.torch import state_tensors

if TYPE_CHECKING:
    from numpy.typing import NDArray


def load_checkpoint(folder: str | os.PathLike[str], **objects: Any) -> dict[str, Any]:
    """Load models and other objects from a checkpoint's folder, and return the plain values stored with them.

        def judge(folder):
            model = build_model()
            hopsml.load_checkpoint(folder, model=model)
            return {"accuracy": accuracy(model)}

    It needs no run and no group. Objects that are not named are not loaded, nor is the optimizer of a compiled model,
    so that an evaluating function may compile the model in its own way. A torch module accepts the state of a
    ``DistributedDataParallel`` around it.

    Args:
        folder: folder of a checkpoint.
        **objects: objects to load, by the names under which they were saved: those in ``State(...)`` or
            ``Checkpointer(...)``; ``fit`` saves its ``model``.

    Returns:
        ``step``, and by their names the plain values of a ``State`` or the notes of ``save``.

    Raises:
        ArgumentError: the folder was not written by a State, ``fit`` or a Checkpointer, or it holds no such name or
            another shape; or a State of a user who is not trusted (``HOPSML_TRUSTED_OWNERS``), as its plain values are
            pickled, and to load them runs code.
        OSError: the folder cannot be read.
    """
    place = Path(folder)
    if (place / STATE_FILE).is_file():
        return _of_state(place, objects)
    if (place / checkpoint_files.DESCRIPTION).is_file():
        return _of_checkpointer(place, objects)
    raise ArgumentError(
        f"{place} holds neither {STATE_FILE} nor {checkpoint_files.DESCRIPTION}: it is not a checkpoint of "
        "hopsml.elastic.State, fit() or a Checkpointer. Pass the folder that an evaluation function receives, or a "
        "copy of checkpoints/step-... of a run; load files that your function has saved itself with the library that "
        "wrote them"
    )


def _of_state(folder: Path, objects: Mapping[str, Any]) -> dict[str, Any]:
    """Load objects from a folder that a ``State`` has committed."""
    content, _ = trust.read_bytes(str(folder / STATE_FILE), UNPICKLED, most=None)
    try:
        snapshot = commits.decode(memoryview(content))
    except ValueError as error:
        raise ArgumentError(f"{folder / STATE_FILE}: {error}") from error
    variables = {key: array for key, array in snapshot.arrays.items() if not key.startswith(state_tensors.PREFIX)}
    kept = set(snapshot.values) | {key.partition("/")[0] for key in variables}
    _check_names(folder, objects, kept)
    plain = {name: commits.unpickle(value) for name, value in snapshot.values.items()}
    for name in objects.keys() & plain.keys():
        _load_state_dict(folder, name, objects[name], plain[name], snapshot)
    if others := {name: value for name, value in objects.items() if name not in plain}:
        _assign(folder, others, variables)
    returned = {name: value for name, value in plain.items() if name not in objects and not _has_tensors(value)}
    return {"step": snapshot.step, **returned}


def _check_names(folder: Path, asked: Iterable[str], kept: Iterable[str]) -> None:
    """Raise ArgumentError for requested names that the folder does not hold."""
    if unknown := sorted(set(asked) - set(kept)):
        raise ArgumentError(
            f"load_checkpoint(): {folder} has no object {', '.join(map(repr, unknown))}; it has: "
            f"{', '.join(sorted(kept))}. Use the names under which the objects were saved"
        )


def _load_state_dict(folder: Path, name: str, value: Any, state: Any, snapshot: Snapshot) -> None:
    """Load one object through its ``load_state_dict``."""
    if not callable(getattr(value, "load_state_dict", None)):
        raise ArgumentError(
            f"load_checkpoint({name}=...): a {type(value).__name__} has no load_state_dict(), and {folder} has no "
            "TensorFlow variables with this name; omit it, since plain values are returned"
        )
    if _has_tensors(state):
        state = state_tensors.join_tensors(state, snapshot.arrays)
    if hasattr(value, "named_parameters"):
        state = state_tensors.rename_state_keys(value, state)
    try:
        value.load_state_dict(state)
    except (KeyError, RuntimeError, ValueError) as error:  # raised by torch's classes
        raise ArgumentError(f"load_checkpoint({name}=...): {folder} contains a different {name}: {error}") from error


def _has_tensors(value: Any) -> bool:
    """Return True for a state dictionary whose tensors are stored separately."""
    if isinstance(value, Mapping):
        return any(map(_has_tensors, value.values()))
    if type(value) in (list, tuple):
        return any(map(_has_tensors, value))
    return isinstance(value, state_tensors.TensorOf)


def _variables(objects: Mapping[str, Any]) -> dict[str, Any]:
    """Return the objects' TensorFlow variables without those of the optimizers that models were compiled with."""
    from hopsml.training.tensorflow import state_variables

    try:
        found = state_variables.collect_variables(objects)
    except ArgumentError as error:
        raise ArgumentError(f"load_checkpoint(): objects must be built, as for a State: {error}") from error
    return {key: variable for key, variable in found.items() if key.split("/")[1:2] != ["optimizer"]}


def _assign(folder: Path, objects: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Assign stored arrays to the objects' TensorFlow variables; raise ArgumentError if the sets differ."""
    from hopsml.training.tensorflow import state_variables

    variables = _variables(objects)
    of_these = {key: array for key, array in arrays.items() if key in variables}
    missing = sorted(set(variables) - set(of_these))
    extra = [key for key in arrays if key.partition("/")[0] in objects and key.split("/")[1:2] != ["optimizer"]]
    if missing or (extra := sorted(set(extra) - set(variables))):
        raise ArgumentError(
            f"load_checkpoint(): {folder} is from another model: it lacks {missing[:5] or 'nothing'}, and also has "
            f"{extra[:5] or 'nothing'}; build the same model as in the training"
        )
    state_variables.assign(variables, of_these)


def _of_checkpointer(folder: Path, objects: Mapping[str, Any]) -> dict[str, Any]:
    """Load objects from a folder that a ``Checkpointer`` has saved."""
    notes = json.loads(read_record(str(folder / checkpoint_files.DESCRIPTION)))
    if objects:
        _read(checkpoint_files.SavedStep(notes["step"], folder, notes), objects)
    return {key: value for key, value in notes.items() if key != "id"}


def _read(saved: checkpoint_files.SavedStep, objects: Mapping[str, Any]) -> None:
    """Read objects from TensorFlow's checkpoint files; raise ArgumentError if variables are missing."""
    import tensorflow as tf
    from tensorflow.python.checkpoint.trackable_view import TrackableView

    kept = {key.partition("/")[0] for key, _ in tf.train.list_variables(saved.prefix)}
    _check_names(saved.folder, objects, kept - {"_CHECKPOINTABLE_OBJECT_GRAPH", "save_counter"})
    variables, checkpoint = _variables(objects), tf.train.Checkpoint(**objects)
    try:
        restored = checkpoint.read(saved.prefix).expect_partial()
    except ValueError as error:  # raised for another shape
        raise ArgumentError(f"load_checkpoint(): {saved.folder} is from another model: {error}") from error
    # TensorFlow's checkpoints do not hold what TensorFlow does not track, such as the state of a dropout's generator.
    lacking = _ids(TrackableView(checkpoint).descendants()) - _ids(restored._checkpoint.object_by_proto_id.values())
    if missing := sorted(key for key, variable in variables.items() if id(variable) in lacking):
        raise ArgumentError(
            f"load_checkpoint(): {saved.folder} is from another model: it lacks {missing[:5]}; build the same model "
            "as in the training"
        )


def _ids(nodes: Iterable[Any]) -> set[int]:
    """Return the ids of these objects, and of the TensorFlow variables inside Keras 3 variables."""
    return {id(one) for node in nodes for one in (node, getattr(node, "__dict__", {}).get("_value"))}
