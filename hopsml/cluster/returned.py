"""What the training function may return, made ready to travel: numbers, dicts, arrays, and files by their path."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from hopsml.cluster.context import WorkerContext

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
    """Strings that name a local file: the file is copied into the run directory, the value becomes its path there.

    Paths are relative to the worker's working directory. A string with a slash that names no file is an error: most
    likely the file was never written. The user's own file stays where it is.
    """
    if isinstance(value, dict):
        return {key: keep_files(item, context) for key, item in value.items()}
    if not isinstance(value, str) or not value:
        return value
    path = Path(value)
    try:
        is_file = path.is_file()
    except OSError:  # too long for a path
        return value
    if not is_file:
        if "/" in value and "://" not in value and "\n" not in value:
            raise FileNotFoundError(
                f"the training function returned '{value}', which looks like a path, but there is no such file on the "
                "worker: write it before returning, or return text without a slash"
            )
        return value
    target = context.export_dir.parent / path.name
    if path.resolve() != target.resolve():
        shutil.copyfile(path, target)
    folder = f"{context.run_id}/trials/{context.trial.trial_id}" if context.trial is not None else context.run_id
    return f"Experiments/{folder}/{path.name}"


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
