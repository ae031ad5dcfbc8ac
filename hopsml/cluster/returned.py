"""What the training function may return, made ready to travel: numbers, dicts, arrays, and files by their path."""

from __future__ import annotations

import filecmp
import itertools
import shutil
from pathlib import Path, PurePath
from typing import Any

from hopsml.cluster.context import WorkerContext
from hopsml.storage.run_dir import RESERVED_NAMES

MAX_RESULT = 48 << 20  # bytes; larger values belong into the run directory
MAX_TEXT = 10_000  # characters of a reported value
_DEVICE_PACKAGES = ("tensorflow", "keras", "torch", "jaxlib", "jax")


def utf8(text: str) -> str:
    """The same text with a "?" for what UTF-8 cannot hold, such as the bytes of a strange file name."""
    return text.encode(errors="replace").decode()


def plain(value: Any) -> float | int | str | bool | None:
    """A number as Python's own type; numpy scalars and one-element tensors of any framework included.

    Text is cut at ``MAX_TEXT`` characters, and a whole number beyond 64 bits becomes a float: messages hold no more.
    """
    if isinstance(value, (bool, float, type(None))):
        return value
    if isinstance(value, int):
        return value if -(1 << 63) <= value < 1 << 63 else _as_float(value)
    if isinstance(value, str):
        return utf8(value[:MAX_TEXT])
    for method in ("item", "numpy"):
        if hasattr(value, method):
            try:
                converted = getattr(value, method)()
            except (TypeError, ValueError, RuntimeError):
                break
            if isinstance(converted, (bool, int, float, str)) or (
                converted is not value and hasattr(converted, "item")
            ):
                return plain(converted)
    return utf8(str(value)[:MAX_TEXT])


def _as_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def to_host(value: Any) -> Any:
    """The same structure with device tensors as numpy arrays: the driver need not have the framework."""
    if isinstance(value, dict):
        return {key: to_host(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(to_host(item) for item in value)
    if type(value).__module__.partition(".")[0] in _DEVICE_PACKAGES:
        if hasattr(value, "detach"):
            value = value.detach().cpu()
        if hasattr(value, "numpy"):
            value = value.numpy()
    return value


def keep_files(value: Any, context: WorkerContext) -> Any:
    """Files that are returned: each is copied into the run directory, the value becomes its path there.

    A ``Path`` is one, and so is text that names a local file, as it was for the predecessor; any other text is text.
    Paths are relative to the worker's working directory. The user's own file stays where it is. Raises
    FileNotFoundError for a ``Path`` that is no file.
    """
    if isinstance(value, dict):
        return {key: keep_files(item, context) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(keep_files(item, context) if isinstance(item, PurePath) else item for item in value)
    if isinstance(value, PurePath):
        path = Path(value)
        if not path.is_file():
            kind = (
                "a folder: save it below hopsml.tensorboard.logdir()" if path.is_dir() else "not there: write it before"
            )
            raise FileNotFoundError(
                f"the training function returned the path '{value}', which is {kind}, or return str(path) for the text "
                f"alone; the worker's folder is {Path.cwd()}"
            )
    elif isinstance(value, str) and value:
        path = Path(value)
        try:
            if not path.is_file():
                return value
        except (OSError, ValueError):  # too long for a path, or holds NUL
            return value
    else:
        return value
    name = _brought(path, context.export_dir.parent)
    folder = f"{context.run_id}/trials/{context.trial.trial_id}" if context.trial is not None else context.run_id
    return f"Experiments/{folder}/{name}"


def _brought(path: Path, folder: Path) -> str:
    """Copy a file into the run directory; its name there, which is another one where that is taken."""
    for number in itertools.count(1):
        target = folder / (path.name if number == 1 else f"{path.stem}-{number}{path.suffix}")
        if target.exists() and path.samefile(target):
            return target.name
        if target.name in RESERVED_NAMES or (target.exists() and not filecmp.cmp(path, target, shallow=False)):
            continue
        shutil.copyfile(path, target)
        return target.name
    raise AssertionError  # the numbers do not end


def pickle_result(value: Any, context: WorkerContext) -> bytes:
    """The bytes for the driver; raises TypeError or ValueError that says what to return instead."""
    import cloudpickle

    kind = type(value).__name__
    try:
        value = keep_files(to_host(value), context)
    except RecursionError:
        raise ValueError(
            f"the training function returned a {kind} that holds itself, or is nested too deep; return plain values"
        ) from None
    try:
        data = bytes(cloudpickle.dumps(value))
    except Exception as error:
        raise TypeError(
            f"the training function returned a {type(value).__name__} that cannot be sent to the driver "
            f"({type(error).__name__}: {error}); return numbers, strings, numpy arrays or dicts of them"
        ) from error
    if len(data) > MAX_RESULT:
        raise ValueError(
            f"the training function returned {len(data) >> 20} MiB; at most {MAX_RESULT >> 20} MiB travel to the "
            "driver: save large values in the run directory and return their path"
        )
    return data
