"""Serialization of the user's function for executors that do not have the user's files.

The user's own modules are pickled by value, installed ones by name. The pickler passes every object to ``_Pickler``
before it is reduced, so that objects that cannot be shipped are refused wherever they are nested; a second pass finds
the path to such an object for the error message.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import importlib.util
import inspect
import logging
import os
import pickle
import sys
import textwrap
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, cast

import cloudpickle

from hopsml.cluster.driver.captured_objects import (
    INSTALLED,
    MAX_DEPTH,
    code_objects,
    find_deepest,
    is_user_module,
    is_user_path,
    references,
    refusal,
    type_name,
)
from hopsml.cluster.driver.secret_extraction import ExtractedSecret, SecretExtractor, seal, secrets_left_in
from hopsml.cluster.worker import calling
from hopsml.core import redact
from hopsml.errors import ArgumentTypeError, CaptureError

logger = logging.getLogger(__name__)

DEFAULT_LIMIT_BYTES = 64 * 2**20
WARNING_BYTES = 8 * 2**20
NOTE_BYTES = 2**20  # size from which the run's notes report the largest parts
MOST_PARTS = 200  # parts of a container that are measured individually
LARGE_SHARE, SMALL_SHARE = (
    0.05,
    0.01,
)  # smallest share of a part that is reported: of its container, and of the largest part
# Worth importing before the function arrives: each takes a second or more; dependencies come first.
PRELOADABLE = ("numpy", "pandas", "sklearn", "tensorflow", "keras", "tf_keras", "torch", "jax")
_FILE_NAME = 10  # index among the arguments of CodeType

_registry_lock = threading.Lock()  # cloudpickle's list of modules by value belongs to the whole process


@dataclass(frozen=True)
class Captured:
    """Function and its arguments, ready to be shipped."""

    name: str
    payload: bytes  # without secrets, as it is recorded; ``payload_with_secrets`` is the form for ``restore``
    preload: tuple[str, ...]  # frameworks that the function will need, of PRELOADABLE
    own_imports: tuple[str, ...]  # the user's modules that it imports when it runs, so they are not in the payload
    source: str  # "" if it is not available
    sha256: str  # of the payload, without secrets
    # of the source, or else of the byte code: unlike the payload's, it is equal for the same function at another time
    code_sha256: str
    large: str = ""  # text about the parts that make it larger than NOTE_BYTES
    secrets: tuple[ExtractedSecret, ...] = ()  # secrets for which ``payload`` has placeholders
    unrecorded: str = ""  # why ``payload`` must not be recorded: it contains a secret nevertheless

    @property
    def payload_with_secrets(self) -> bytes:
        """Payload with the secrets that it needs: for workers alone, never for a permanent file."""
        return seal(self.payload, self.secrets)


def capture(
    function: Callable[..., Any],
    args: Mapping[str, Any] | None = None,
    *,
    limit_bytes: int = DEFAULT_LIMIT_BYTES,
    importable: Collection[str] = (),
) -> Captured:
    """Pickle ``function`` and ``args`` with all objects that they refer to.

    Args:
        function: The function to run on executors.
        args: Its keyword arguments; None: none.
        limit_bytes: Largest size of the payload.
        importable: The user's own modules that the executors have (``--py-files``), which are pickled by name.

    Returns:
        The payload and its description.

    Raises:
        ArgumentTypeError: ``function`` cannot be called, or ``args`` is no dict with str keys.
        CaptureError: An object cannot be shipped, with the path to it; or the payload exceeds ``limit_bytes``, with its
            largest objects.
    """
    if not callable(function):
        raise ArgumentTypeError(f"the argument must be a function, not {type_name(function)}: {function!r:.80}")
    args = {} if args is None else args
    if not isinstance(args, Mapping) or not all(isinstance(name, str) for name in args):
        raise ArgumentTypeError(f"args={args!r:.80}: it must be a dict of values by parameter name")
    name = name_of(function)
    payload, seen, secrets, unrecorded = _without_secrets(name, function, dict(args), limit_bytes, importable)
    large = ""
    if len(payload) > NOTE_BYTES:
        parts = _largest(function, dict(args), importable)
        large = f"{name} and what it captures take {_mib(len(payload))}, which every worker receives: {parts}"
        if len(payload) > WARNING_BYTES:
            logger.warning(
                "%s; read large arrays from shared storage inside the function, and pass a large table by data=", large
            )
    if seen.own_imports:
        logger.warning(
            "%s imports %s when it is called; import your own modules at the top of the file, so that they are "
            "shipped, or pass them to Spark with --py-files",
            name,
            ", ".join(sorted(seen.own_imports)),
        )
    source = _source(function)
    return Captured(
        name=name,
        payload=payload,
        preload=tuple(module for module in PRELOADABLE if module in seen.modules),
        own_imports=tuple(sorted(seen.own_imports)),
        source=source,
        sha256=hashlib.sha256(payload).hexdigest(),
        code_sha256=hashlib.sha256(source.encode() or _byte_code(function)).hexdigest(),
        large=large,
        secrets=secrets,
        unrecorded=unrecorded,
    )


def name_of(function: object) -> str:
    """Return the name of a function in records and messages."""
    return str(getattr(function, "__name__", type_name(function)))


# -- pickling


class _TooLarge(Exception):
    """Error for a payload that has reached its limit; nothing more was written."""


class _Refused(Exception):
    """Error for an object that must not be shipped."""


class _Seen:
    """Modules that the shipped functions will import, as found while pickling."""

    def __init__(self, keeper: SecretExtractor | None = None) -> None:
        self.modules: set[str] = set()  # top-level names
        self.own_imports: set[str] = set()
        self.keeper = keeper

    def inspect_object(self, obj: object, importable: Collection[str]) -> None:
        """Record the module of an object, and the imports in the code of a shipped function."""
        self.modules.add(_origin(obj).partition(".")[0])
        if isinstance(obj, FunctionType) and _by_value(obj, importable):
            for code in code_objects(obj.__code__):
                self._inspect_code(code, importable)
            if self.keeper is not None:
                self.keeper.remember_literals(_source(obj))

    def _inspect_code(self, code: CodeType, importable: Collection[str]) -> None:
        """Record the imports in a piece of code."""
        imported = {
            str(instruction.argval).partition(".")[0]
            for instruction in dis.get_instructions(code)
            if instruction.opname == "IMPORT_NAME"
        }
        self.modules |= imported
        names = {*imported, *code.co_names}
        if "hopsml" in names and names & {"tensorflow", "hopsml.tensorflow"}:
            self.modules.add("tensorflow")  # which hopsml.tensorflow needs
        self.own_imports |= {name for name in imported if name not in importable and _is_own_import(name)}


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """Pickler that checks each object before it is reduced, registers the user's modules, and refuses some objects."""

    def __init__(self, file: _Buffer, importable: Collection[str], limit_bytes: int, seen: _Seen) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.registered: list[ModuleType] = []
        self._importable = importable
        self._limit_bytes = limit_bytes
        self._seen = seen
        if seen.keeper is not None:  # called for every object before ``reducer_override``
            self.persistent_id = seen.keeper.placeholder

    def reducer_override(self, obj: Any) -> Any:
        """Return the reduction of an object.

        Pickle calls this for everything but plain numbers, texts and containers.
        """
        if refusal(obj) is not None:
            raise _Refused
        if _array_bytes(obj) > self._limit_bytes:  # before it is copied
            raise _TooLarge
        self._seen.inspect_object(obj, self._importable)
        if isinstance(obj, FunctionType | type | ModuleType):
            self._register(_origin(obj))
        reduction = _with_its_file(obj) if isinstance(obj, CodeType) else super().reducer_override(obj)
        if isinstance(obj, FunctionType | type) and isinstance(reduction, tuple):  # by value
            for library, name in calling.registrations(obj):
                self._seen.modules.add(library)
                *made, set_state = reduction
                reduction = (*made, calling.registering(set_state, library, name))
        return reduction

    def _register(self, name: str) -> None:
        """Register the user's own module to be pickled by value."""
        module = sys.modules.get(name)
        if module is None or name in self._importable or not is_user_module(module):
            return
        if name not in cloudpickle.list_registry_pickle_by_value():
            cloudpickle.register_pickle_by_value(module)
            self.registered.append(module)


def _with_its_file(code: CodeType) -> tuple[Any, ...]:
    """Return cloudpickle's reduction of code together with its file name, which cloudpickle omits from 3.1.3 on.

    Tracebacks show lines of that file; ``inspect.getsource``, and so AutoGraph and ``torch.jit.script``, read it.
    """
    make, arguments, *rest = cloudpickle.Pickler.dispatch_table[CodeType](code)
    named = list(arguments)
    # a copy, so that the bytes do not depend on other references to the same text
    named[_FILE_NAME] = "".join(code.co_filename)
    return (make, tuple(named), *rest)


class _Measure(_Pickler):
    """Pickler that counts bytes without storing them; arrays are counted without being copied."""

    def __init__(self, importable: Collection[str]) -> None:
        self._sink = _Buffer(sys.maxsize, keep=False)
        self._array_bytes = 0
        super().__init__(self._sink, importable, sys.maxsize, _Seen())

    @property
    def total(self) -> int:
        """Number of bytes counted so far."""
        return self._sink.size + self._array_bytes

    def reducer_override(self, obj: Any) -> Any:
        """Return the reduction of an object; an array is counted, and a small object is pickled in its place."""
        size = _array_bytes(obj)
        self._array_bytes += size
        return (int, ()) if size else super().reducer_override(obj)


class _Buffer:
    """Output of a pickler that stores the bytes on request, and stops at a limit."""

    def __init__(self, limit_bytes: int, keep: bool) -> None:
        self._limit_bytes = limit_bytes
        self._keep = keep
        self.size = 0
        self.chunks: list[bytes] = []

    def write(self, data: Any) -> int:
        """Count and store a piece of output.

        Raises:
            _TooLarge: The limit is exceeded.
        """
        count = memoryview(data).nbytes
        self.size += count
        if self.size > self._limit_bytes:
            raise _TooLarge
        if self._keep:
            self.chunks.append(bytes(data))
        return count


def _dump(pickler: _Pickler, obj: object) -> None:
    """Pickle an object, and undo the registration of modules in cloudpickle afterwards."""
    with _registry_lock:
        try:
            pickler.dump(obj)
        finally:
            for module in pickler.registered:
                cloudpickle.unregister_pickle_by_value(module)


def _without_secrets(
    name: str, function: object, args: dict[str, Any], limit_bytes: int, importable: Collection[str]
) -> tuple[bytes, _Seen, tuple[ExtractedSecret, ...], str]:
    """Return the payload without secrets, the imports seen, the secrets, and why it cannot be recorded, if so."""
    while True:
        known = redact.known_secrets()
        keeper = SecretExtractor(known)
        payload, seen = _payload(name, function, args, limit_bytes, importable, keeper)
        for value, found in keeper.newly_found.items():
            redact.register(found, value)
        if redact.known_secrets() == known:  # else a secret was met before the object that shows that it is one
            break
    variables = redact.secrets_by_value(os.environ)
    secrets = tuple(
        ExtractedSecret(name, value, variables.get(str(value), "")) for name, value in keeper.extracted.items()
    )
    left = secrets_left_in(payload, known)
    why = (
        f"the values that {name} captures contain {', '.join(left)} in a form that cannot be removed, such as an "
        "array; pass it as text"
        if left
        else ""
    )
    return payload, seen, secrets, why


def _payload(
    name: str,
    function: object,
    args: dict[str, Any],
    limit_bytes: int,
    importable: Collection[str],
    keeper: SecretExtractor,
) -> tuple[bytes, _Seen]:
    """Pickle function and arguments, with errors that explain which object is the reason."""
    buffer, seen = _Buffer(limit_bytes, keep=True), _Seen(keeper)
    try:
        _dump(_Pickler(buffer, importable, limit_bytes, seen), (function, args))
    except _TooLarge:
        raise CaptureError(
            f"{name} and what it captures take more than the limit of {_mib(limit_bytes)}: "
            f"{_largest(function, args, importable)}. Put arrays and tensors on shared storage and read them inside the "
            "function; pass a table as a Spark DataFrame by data=, which workers read in parts"
        ) from None
    except Exception as error:  # any __reduce__ method may raise anything
        raise CaptureError(_explanation(name, function, args, importable, error)) from error
    return b"".join(buffer.chunks), seen


# -- explanations for error messages


def _parts(function: object, args: Mapping[str, object]) -> list[tuple[str, object]]:
    """Return the objects that the function refers to and the arguments, each with its description."""
    return [*references(function), *((f"args[{name!r}]", value) for name, value in args.items())]


def _explanation(
    name: str, function: object, args: Mapping[str, object], importable: Collection[str], error: Exception
) -> str:
    """Return the message about an object that cannot be shipped, with the path to it."""

    def fails(obj: object) -> bool:
        try:
            _dump(_Measure(importable), obj)
        except Exception:  # noqa: BLE001  (any __reduce__ method may raise anything)
            return True
        return False

    path, culprit = find_deepest(_parts(function, args), fails) or ([], function)
    what = f"{name} captures {' → '.join(path)}, a {type_name(culprit)}" if path else f"{name}, a {type_name(culprit)}"
    reason = refusal(culprit)
    if reason is not None:
        return f"{what}, {reason.why}; {reason.remedy}"
    return (
        f"{what}, which cannot be pickled ({type(error).__name__}: {error}); create it inside the function, or do "
        "not refer to it in the function"
    )


def _largest(function: object, args: Mapping[str, object], importable: Collection[str]) -> str:
    """Return the five largest of the user's objects that the function refers to, each with its path and size.

    Containers and instances of the user's classes are searched; a library's object, such as a DataFrame, counts as one.
    """

    def size(obj: object) -> int:
        measure = _Measure(importable)
        try:
            _dump(measure, obj)
        except Exception:  # noqa: BLE001  (only the sizes matter here)
            return 0
        return measure.total

    found: list[tuple[int, str]] = []
    waiting = [([label], part, size(part)) for label, part in _users_parts(function, args)]
    visited: set[int] = set()
    while waiting:
        path, obj, count = waiting.pop()
        if id(obj) in visited:
            continue
        visited.add(id(obj))
        inside = _inside(obj) if len(path) < MAX_DEPTH else []
        sized = [(label, part, size(part)) for label, part in inside] if len(inside) <= MOST_PARTS else []
        if large := [entry for entry in sized if entry[2] >= LARGE_SHARE * count]:
            waiting += [([*path, label], part, bytes_) for label, part, bytes_ in large]
        else:
            found.append((count, f"{' → '.join(path)}, a {type_name(obj)}, {_mib(count)}"))
    found.sort(key=lambda entry: entry[0], reverse=True)
    most = found[0][0] if found else 0
    return "; ".join(text for count, text in found[:5] if count >= SMALL_SHARE * most) or "the function itself"


def _users_parts(function: object, args: Mapping[str, object]) -> list[tuple[str, object]]:
    """Return the parts of a function as ``_parts`` does; for hopsml's wrapper of a user's function, the user's objects."""
    if not str(getattr(function, "__module__", "")).startswith("hopsml."):
        return _parts(function, args)
    found: list[tuple[str, object]] = []
    for name, value in args.items():
        if isinstance(value, FunctionType):
            found += references(value)
        elif isinstance(value, Mapping):
            found += [(f"`{key}`", item) for key, item in value.items()]
        else:
            found.append((f"`{name}`", value))
    return found


def _inside(obj: object) -> list[tuple[str, object]]:
    """Return the objects that the user has stored in ``obj``, each with its description; none for a library's object."""
    kind = type(obj)
    module = sys.modules.get(kind.__module__)
    is_users = kind.__module__ == "__main__" or "<locals>" in kind.__qualname__ or (module and is_user_module(module))
    plain = (Mapping, list, tuple, set, frozenset, deque, FunctionType, MethodType, functools.partial)
    if not (isinstance(obj, plain) or is_users or (isinstance(obj, ModuleType) and is_user_module(obj))):
        return []
    return [(label, part) for label, part in references(obj) if not label.startswith("`._")]


def _mib(count: int) -> str:
    """Return a number of bytes as text in MiB."""
    return f"{count / 2**20:.1f} MiB"


def _plain_function(function: object) -> object:
    """Return the function inside partial objects and decorators."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.unwrap(function) if callable(function) else function


def _source(function: object) -> str:
    """Return the source of a function without indentation; "" if it is not available."""
    try:
        return textwrap.dedent(inspect.getsource(cast(Any, _plain_function(function))))
    except (OSError, TypeError):  # typed into a console, built in, or an object that is called
        return ""


def _byte_code(function: object) -> bytes:
    """Return bytes that identify a function without source: its code, its names and its default values."""
    plain: Any = _plain_function(function)
    code = getattr(plain, "__code__", None) or getattr(vars(type(plain)).get("__call__"), "__code__", None)
    if code is None:
        return type_name(function).encode()
    given = [*(getattr(plain, "__defaults__", None) or ()), *(getattr(plain, "__kwdefaults__", None) or {}).items()]
    # No text of other objects: it may contain their address.
    defaults = repr([one if isinstance(one, (int, float, str, bytes, tuple)) else type_name(one) for one in given])
    parts = (part.co_code + repr((part.co_names, _constants(part))).encode() for part in code_objects(code))
    return b"".join([type_name(function).encode(), defaults.encode(), *parts])


def _constants(code: CodeType) -> list[str]:
    """Return the constants in the code, such as numbers and text, in a form that is equal in every process."""
    plain = (constant for constant in code.co_consts if not isinstance(constant, CodeType))
    return [repr(sorted(map(repr, one)) if isinstance(one, frozenset) else one) for one in plain]


def _origin(obj: object) -> str:
    """Return the name of the module that an object is, is defined in, or is an instance of a class from."""
    if isinstance(obj, ModuleType):
        return obj.__name__
    return str(obj.__module__ if isinstance(obj, FunctionType | type) else type(obj).__module__)


def _array_bytes(obj: object) -> int:
    """Return the size of a NumPy array in bytes; 0 for anything else, also for an array of Python objects."""
    if type(obj).__module__ != "numpy" or not hasattr(obj, "nbytes") or not hasattr(obj, "dtype"):
        return 0
    return 0 if obj.dtype.hasobject else int(obj.nbytes)


def _by_value(function: FunctionType, importable: Collection[str]) -> bool:
    """Return True if the function's code is in the payload: notebook, script, nested or the user's own module."""
    module = sys.modules.get(function.__module__)
    if module is None or function.__module__ == "__main__" or "<locals>" in function.__qualname__:
        return True
    return function.__module__ not in importable and is_user_module(module)


def _is_own_import(name: str) -> bool:
    """Return True if the module of this name is the user's own."""
    if name in sys.stdlib_module_names or name in INSTALLED:
        return False
    if name in sys.modules:
        return is_user_module(sys.modules[name])
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None and is_user_path(spec.origin)
