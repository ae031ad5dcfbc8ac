"""Results of the training function: its value, converted for the driver, and the files in its working folder."""

from __future__ import annotations

import errno
import filecmp
import itertools
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any, Literal

from hopsml.cluster.shared.plain import is_opaque, utf8
from hopsml.cluster.worker.context import WorkerContext
from hopsml.storage import urls
from hopsml.storage.run_dir import EXPERIMENTS, RESERVED_NAMES

LIMIT_BYTES = 1 << 30  # largest total of the files of one worker's folder that are stored
FOR_RECORDS = 1 << 20  # bytes that copies leave free on the disk: the run's outcome is still to be written
PRIVATE = ("resume", "runner.pickle")  # hopsml's own
PRIVATE_PREFIX = "hopsml-unused-"
_ET_CORE = 4
_NAMED = 5  # files that a note lists


Stamp = tuple[int, int, int]  # of a file: modification time in nanoseconds, size in bytes, inode


def stamps(folder: Path) -> dict[Path, Stamp]:
    """Return the stamps of the files in the folder, for ``keep`` to omit these later.

    Times alone are not sufficient, as their clock is coarse.
    """
    return {path: (status.st_mtime_ns, status.st_size, status.st_ino) for path, status in _files(folder)}


def store_files(
    folder: Path, target: Path, before: Mapping[Path, Stamp] | None = None, limit_bytes: int = LIMIT_BYTES
) -> str:
    """Store the files that were saved in ``folder`` in ``target``, small ones first.

    They are linked if possible, so that nothing is copied; the files themselves stay in the folder. Byte code that
    Python has cached is omitted.

    Args:
        folder: The worker's folder.
        target: Folder that receives the files.
        before: Stamps of earlier files, which are omitted unless they have been written since.
        limit_bytes: Total size of the files, at most.

    Returns:
        A note about omitted files; "" if there are none.

    Raises:
        OSError: ``target`` cannot be written, or there would be no space left for the run's records.
    """
    known, now = before or {}, stamps(folder)
    made = {path: stamp for path, stamp in now.items() if "__pycache__" not in path.relative_to(folder).parts}
    changed = [(path, stamp[1]) for path, stamp in made.items() if known.get(path) != stamp]
    found = sorted(changed, key=lambda entry: (entry[1], entry[0]))
    room, left_out = limit_bytes, []
    dumps = [path for path, _ in found if _is_core_dump(path)]
    for path, size in found:
        if path in dumps:
            continue
        if size > room:
            left_out.append((path, size))
            continue
        room -= size
        _bring(path, target / path.relative_to(folder))
    note = (
        f"{', '.join(str(path.relative_to(folder)) for path in dumps[:_NAMED])}: a core dump is not stored, since it "
        "contains the memory of a process with all its secrets" if dumps else ""
    )  # fmt: skip
    if not left_out:
        return note
    names = ", ".join(str(path.relative_to(folder)) for path, _ in left_out[:_NAMED])
    more = f" and {len(left_out) - _NAMED} more" if len(left_out) > _NAMED else ""
    return (f"{note}; " if note else "") + (
        f"{sum(size for _, size in left_out) / 1e9:.1f} GB that were saved in the worker's folder are not stored, "
        f"since the limit is {limit_bytes / 1e9:.1f} GB: {names}{more}; save large files below "
        "hopsml.tensorboard.logdir(), or in storage"
    )


def _is_core_dump(path: Path) -> bool:
    """Return True for an ELF file of type ET_CORE, by its first bytes, whatever its name."""
    try:
        with open(path, "rb", buffering=0, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            head = file.read(18)
    except OSError:  # the copy of this file fails as well, and reports it
        return False
    order: Literal["little", "big"] = "big" if head[5:6] == b"\2" else "little"
    return head.startswith(b"\x7fELF") and len(head) == 18 and int.from_bytes(head[16:18], order) == _ET_CORE


def _files(folder: Path) -> list[tuple[Path, os.stat_result]]:
    """Return the user's files in a folder with their status."""
    found = []
    for parent, folders, names in os.walk(folder):
        if Path(parent) == folder:
            names = [name for name in names if name not in PRIVATE]
            folders[:] = [one for one in folders if one not in PRIVATE and not one.startswith(PRIVATE_PREFIX)]
        for name in names:
            path = Path(parent, name)
            try:
                status = path.lstat()
            except FileNotFoundError:  # a process that the function started has removed it
                continue
            if path.is_file() and not path.is_symlink():
                found.append((path, status))
    return found


def _bring(source: Path, target: Path) -> None:
    """Link or copy a file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:  # another disk
        _copy(source, target)


def _copy(source: Path, target: Path) -> None:
    """Copy a file completely or not at all.

    Raises:
        OSError: The copy fails, or the disk would become too full.
    """
    size, free = source.stat().st_size, shutil.disk_usage(target.parent).free
    if free < size + FOR_RECORDS:
        raise OSError(errno.ENOSPC, f"{size / 1e6:.1f} MB, and {free / 1e6:.1f} MB are free", str(target))
    try:
        shutil.copyfile(source, target)
    except OSError:  # a quota, or other processes have filled the disk
        target.unlink(missing_ok=True)
        raise


script_folders: list[Path] = []  # folder of the script that this process runs, if it runs one


def missing_path_hint(error: BaseException, folder: Path) -> str:
    """Return the hint where a missing path of the user's was looked up; "" for any other error.

    Args:
        error: The function's error.
        folder: The worker's working folder.
    """
    if not isinstance(error, FileNotFoundError):
        return ""
    name = error.filename or getattr(error, "path", None)  # the latter of errors of hopsml's own
    if isinstance(name, (str, bytes)) and (os.path.isabs(name) or b"://" in os.fsencode(name)):
        is_copy = any(
            beside.is_relative_to(folder) and Path(os.fsdecode(name)).parent == beside for beside in script_folders
        )
        return _COPIED_SCRIPT if is_copy else ""
    relative = f"a relative path refers to the worker's folder {folder}, which is empty when the function starts"
    if isinstance(name, (str, bytes)) and any((beside / os.fsdecode(name)).exists() for beside in script_folders):
        return f" ({relative}; the file is beside the script: Path(__file__).parent / {os.fsdecode(name)!r})"
    return f" ({relative}; use a path that every host can read, or capture the content of the file in the function)"


_COPIED_SCRIPT = (
    " (this host cannot read the folder of the script, of which it has a copy: put the file on storage that every host can "
    "read)"
)
MAX_RESULT = 48 << 20  # bytes; larger values should be in the run directory
MAX_TEXT = 10_000  # characters of a reported value
_DEVICE_PACKAGES = ("tensorflow", "keras", "torch", "jaxlib", "jax")


def plain(value: Any) -> float | int | str | bool | None:
    """Return a number as Python's own type; NumPy scalars and one-element tensors of any framework included.

    Text is cut at ``MAX_TEXT`` characters, and a whole number beyond 64 bits becomes a float, as messages allow no
    more. Any other value becomes text.
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
    """Return a whole number as float; beyond its range, as infinity."""
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def to_host(value: Any) -> Any:
    """Return the same structure with device tensors as NumPy arrays, since the driver need not have the framework."""
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


def store_returned_files(value: Any, context: WorkerContext) -> Any:
    """Copy returned files into the run directory, and return the value with their places there.

    A ``Path`` is a file, and becomes its URL. Text that names a local file becomes its path below the project, as in
    the predecessor; any other text is unchanged. Paths are relative to the worker's working directory. The user's file
    is not moved.

    Args:
        value: The function's result.
        context: The worker's context.

    Raises:
        FileNotFoundError: A ``Path`` is no file.
    """
    if isinstance(value, dict):
        return {key: store_returned_files(item, context) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(
            store_returned_files(item, context) if isinstance(item, PurePath) else item for item in value
        )
    if isinstance(value, PurePath):
        path = Path(value)
        if not path.is_file():
            kind = (
                "a folder; save it below hopsml.tensorboard.logdir()" if path.is_dir() else "missing; write it before"
            )
            raise FileNotFoundError(
                f"'{value}' is {kind}, or return str(path) for the text alone; the worker's folder is {Path.cwd()}"
            )
        return f"{_home(context)}/{_brought(path, context.export_dir.parent)}"
    if not isinstance(value, str) or not _names_a_file(value):
        return value
    _, found, below = _home(context).rpartition(f"/{EXPERIMENTS}/")
    name = _brought(Path(value), context.export_dir.parent)
    return f"{EXPERIMENTS}/{below if found else context.run_id}/{name}"


def _names_a_file(text: str) -> bool:
    """Return True if the text is the path of a file."""
    try:
        return bool(text) and Path(text).is_file()
    except (OSError, ValueError):  # too long for a path, or contains NUL
        return False


def _home(context: WorkerContext) -> str:
    """Return the URL of the run's directory, or of the trial's."""
    run = context.run_url.rstrip("/")
    return run if context.trial is None else urls.join(run, context.trials, context.trial.trial_id)


def _brought(path: Path, folder: Path) -> str:
    """Copy a file into the run directory, and return its name there, changed if the name is taken."""
    for number in itertools.count(1):
        target = folder / _numbered(path, number)
        if target.exists() and path.samefile(target):
            return target.name
        if target.name in RESERVED_NAMES or (target.exists() and not filecmp.cmp(path, target, shallow=False)):
            continue
        try:
            shutil.copyfile(path, target)
        except OSError:  # the disk is full: a partial copy would occupy it
            target.unlink(missing_ok=True)
            raise
        return target.name
    raise AssertionError  # unreachable: the numbers do not end


def _numbered(path: Path, number: int) -> str:
    """Return the file's name with a number before its suffix; unchanged for 1."""
    return path.name if number == 1 else f"{path.stem}-{number}{path.suffix}"


def pickle_result(value: Any, context: WorkerContext, tell: Callable[[str], None]) -> bytes:
    """Return the result as bytes for the driver; what cannot be sent is omitted, as the training itself has succeeded.

    Of a dict the entries that can be sent are; a value that is too large is stored as a whole in the run directory.

    Args:
        value: The function's result.
        context: The worker's context.
        tell: Called with a text for each omission and its reason.
    """
    if models := _models(value):
        tell(
            f"the training function returned a model ({models[0]}), which can be read with the same packages only: "
            "return numbers, and store the model inside the function by hopsml.model.export(model, 'NAME')"
        )
    if opaque := [type(part).__qualname__ for part in _parts(value) if is_opaque(part)]:
        tell(
            f"the training function returned an object of class {opaque[0]}: only this program gets it (result.value), and "
            "the record of the run has no content of it; return numbers, strings, numpy arrays or dicts of them"
        )
    try:
        ready, data = _packed(value, context)
    except Exception as error:  # noqa: BLE001 the user's objects may raise anything
        ready = _Entries(context, tell).of(value, "", error)
        data = _dumped(ready)
    if len(data) <= MAX_RESULT:
        return data
    tell(
        f"the value that the training function returned has {len(data) >> 20} MiB, but at most {MAX_RESULT >> 20} "
        f"MiB can be sent to the driver: {_write_to_artifacts(data, context)}"
    )
    return _dumped(_small_ones(ready, tell) if isinstance(ready, dict) else None)


_MODEL_PACKAGES = ("keras", "tf_keras", "tensorflow", "torch", "flax", "sklearn")
_MODEL_CLASSES = ("Model", "Module", "BaseEstimator")


def _parts(value: Any) -> Iterable[Any]:
    """Return the entries of a returned dict, list or tuple; of any other value the value itself."""
    return value.values() if isinstance(value, dict) else value if type(value) in (list, tuple) else (value,)


def _models(value: Any) -> list[str]:
    """Return the class names of the models that are the value, or an entry of it."""
    return [
        f"{kind.__module__.partition('.')[0]}: {kind.__name__}"
        for kind in map(type, _parts(value))
        if any(
            base.__name__ in _MODEL_CLASSES and base.__module__.partition(".")[0] in _MODEL_PACKAGES
            for base in kind.__mro__
        )
    ]


def _packed(value: Any, context: WorkerContext) -> tuple[Any, bytes]:
    """Return a value that can be sent, and its bytes; raises the error that prevents it."""
    ready = store_returned_files(to_host(value), context)
    return ready, _dumped(ready)


def _dumped(value: Any) -> bytes:
    """Return a value as bytes of cloudpickle."""
    import cloudpickle

    return bytes(cloudpickle.dumps(value))


class _Entries:
    """Search for the parts of a value that can be sent when the whole cannot."""

    def __init__(self, context: WorkerContext, tell: Callable[[str], None]) -> None:
        self._context, self._tell = context, tell
        self._inside: set[int] = set()  # ids of dicts being visited: one may contain itself

    def of(self, value: Any, path: str, error: Exception) -> Any:
        """Return the value without the parts that cannot be sent.

        Args:
            value: The value, or a part of it.
            path: The part's place in the whole.
            error: The error that prevents the value as it is.
        """
        if isinstance(value, dict) and id(value) not in self._inside:
            self._inside.add(id(value))
            found = {key: self._entry(key, item, f"{path}[{key!r:.80}]") for key, item in value.items()}
            return {key: item for key, item in found.items() if item is not _LEFT_OUT}
        what = (
            f"the entry {path} of the value that the training function returned"
            if path
            else "the value that the training function returned"
        )
        if isinstance(value, str):  # its file cannot be copied
            self._tell(f"{what} is returned as text, and its file is not copied: {error}")
            return value
        self._tell(f"{what}, a {type(value).__name__}, is omitted: {_why(error)}")
        return _LEFT_OUT if path else None

    def _entry(self, key: Any, item: Any, path: str) -> Any:
        """Return an entry of a dict, without what cannot be sent."""
        try:
            _dumped(key)
            return _packed(item, self._context)[0]
        except Exception as error:  # noqa: BLE001 the user's objects may raise anything
            return self.of(item, path, error)


_LEFT_OUT = object()


def _why(error: Exception) -> str:
    """Return the reason for an omission as text for users."""
    if isinstance(error, RecursionError):
        return "it contains itself, or is nested too deeply; return plain values"
    if isinstance(error, OSError):
        return str(error)
    return (
        f"it cannot be pickled ({type(error).__name__}: {str(error)[:500]}); return numbers, strings, numpy arrays or dicts "
        "of them"
    )


def _small_ones(entries: dict[Any, Any], tell: Callable[[str], None]) -> dict[Any, Any]:
    """Return as many entries as may be sent together, smallest first."""
    sizes = {key: len(_dumped((key, item))) for key, item in entries.items()}
    room, travelling = MAX_RESULT, set()
    for key in sorted(sizes, key=sizes.__getitem__):
        room -= sizes[key]
        if room < 0:
            break
        travelling.add(key)
    names = ", ".join(f"{key!r:.80} ({sizes[key] >> 20} MiB)" for key in entries if key not in travelling)
    tell(f"not sent to the driver: {names}")
    return {key: item for key, item in entries.items() if key in travelling}


def _write_to_artifacts(data: bytes, context: WorkerContext) -> str:
    """Write a value that is too large to be sent to the run's artifacts, and return a text with its place."""
    folder = context.export_dir.parent / "artifacts"
    names = (_numbered(Path("result.pickle"), number) for number in itertools.count(1))
    name = next(name for name in names if not (folder / name).exists() and not (context.work_dir / name).exists())
    try:
        folder.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    except OSError as error:
        (folder / name).unlink(missing_ok=True)
        return (
            f"it is lost, since it could not be stored in {_home(context)}/artifacts either: {error.strerror or error}"
        )
    return f"it is stored in {_home(context)}/artifacts/{name}; read it with pickle.load"
