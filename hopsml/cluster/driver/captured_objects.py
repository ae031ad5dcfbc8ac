"""References of a function, the objects among them that must not be shipped, and the user's own modules."""

from __future__ import annotations

import dis
import functools
import io
import site
import sys
import sysconfig
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import AsyncGeneratorType, CodeType, CoroutineType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

MAX_DEPTH = 30  # longest path from the function to an object that a message describes

# Never pickled by value, wherever they are installed: on YARN pyspark is a zip outside site-packages.
INSTALLED = frozenset(
    {"hopsml", "pyspark", "py4j", "cloudpickle", "numpy", "pandas", "pyarrow", "sklearn"}
    | {"tensorflow", "keras", "tf_keras", "torch", "jax", "jaxlib"}
)


# -- objects that must not be shipped


@dataclass(frozen=True)
class Refusal:
    """Reason why an object must not be shipped, and what the user can do instead."""

    why: str
    remedy: str


_DRIVER = Refusal(
    "which exists only in the driver",
    "use it before the launch, and pass the result in args, since a training function cannot start Spark jobs",
)
_DATA = Refusal(
    "whose rows can be read only through the driver",
    "pass it by data={...}, which sends its rows to the workers (an RDD as rdd.toDF()), or write it to shared storage and "
    "read it inside the function, or pass a small one as .toPandas()",
)
_EXPRESSION = Refusal("which only Spark can compute", "add it to a DataFrame by df.withColumn(...) before the launch")
_BROADCAST = Refusal("which only Spark tasks can read", "pass its .value in args")
_ACCUMULATOR = Refusal(
    "to which only Spark tasks can add", "return the value from the function, or send it by hopsml.report(...)"
)
_TENSORFLOW = Refusal(
    "which belongs to TensorFlow in this process",
    "create it inside the function, and pass values as NumPy arrays (.numpy()) in args",
)
_DEVICE = Refusal("which is on a device of this machine", "pass it as a CPU tensor or a NumPy array")
_LOCK = Refusal("which works in one process only", "create it inside the function")
_FILE = Refusal("an open file or connection of this process", "open it inside the function, by its path or address")
_GENERATOR = Refusal("whose state cannot be copied", "create it inside the function, or pass a list")

# (module or package, names of classes in it, refusal)
_RULES = (
    ("pyspark", ("SparkContext", "SparkSession", "SQLContext", "StreamingContext"), _DRIVER),
    ("pyspark", ("DataFrame", "RDD", "GroupedData"), _DATA),
    ("pyspark", ("Column",), _EXPRESSION),
    ("pyspark", ("Accumulator",), _ACCUMULATOR),
    ("pyspark", ("Broadcast",), _BROADCAST),
    ("py4j", ("JavaObject", "JavaGateway", "JavaClass"), _DRIVER),
    ("tensorflow", ("EagerTensor", "BaseResourceVariable", "DatasetV2", "StrategyBase"), _TENSORFLOW),
    ("_thread", ("lock", "RLock"), _LOCK),
    ("threading", ("_RLock", "Condition", "Event", "Semaphore", "Barrier", "Thread"), _LOCK),
    ("multiprocessing", ("SemLock", "BaseProcess", "Queue"), _LOCK),
    ("queue", ("Queue", "SimpleQueue"), _LOCK),
    ("_queue", ("SimpleQueue",), _LOCK),
    ("concurrent.futures", ("Executor", "Future"), _LOCK),
    ("subprocess", ("Popen",), _LOCK),
    ("_socket", ("socket",), _FILE),
    ("sqlite3", ("Connection",), _FILE),
)
_RULES_BY_NAME: dict[str, list[tuple[str, Refusal]]] = {}
for _package, _names, _refusal in _RULES:
    for _name in _names:
        _RULES_BY_NAME.setdefault(_name, []).append((_package, _refusal))
_GENERATORS = (GeneratorType, CoroutineType, AsyncGeneratorType)


def refusal(obj: object) -> Refusal | None:
    """Return why ``obj`` must not be shipped; None if pickle may try. Imports no framework for the check."""
    for kind in type(obj).__mro__:
        for package, reason in _RULES_BY_NAME.get(kind.__name__, ()):
            if kind.__module__ == package or kind.__module__.startswith(package + "."):
                return reason
    if isinstance(obj, io.IOBase) and not isinstance(obj, io.BytesIO | io.StringIO):
        standard = any(obj is stream for stream in (sys.stdin, sys.stdout, sys.stderr))
        return None if standard else _FILE
    if isinstance(obj, _GENERATORS):
        return _GENERATOR
    return _DEVICE if _on_device(obj) else None


def _on_device(obj: object) -> bool:
    """Return True if a tensor or array is on a device other than the CPU."""
    packages = {kind.__module__.partition(".")[0] for kind in type(obj).__mro__}
    if not packages & {"torch", "jax", "jaxlib", "cupy"}:
        return False
    storage = getattr(obj, "_untyped_storage", obj)  # torch's TypedStorage is deprecated, and its attributes warn
    device = getattr(storage, "device", None)
    kind = getattr(device, "type", None) or getattr(device, "platform", None)  # of torch, of JAX
    return device is not None if "cupy" in packages else kind not in (None, "cpu")


def type_name(obj: object) -> str:
    """Return the type of an object as text, such as pyspark.sql.session.SparkSession, int, module helpers."""
    if isinstance(obj, ModuleType):
        return f"module {obj.__name__}"
    kind = type(obj)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


# -- the path to an object


def code_objects(code: CodeType) -> Iterator[CodeType]:
    """Yield a function's code and that of all functions and classes defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from code_objects(constant)


def references(obj: object) -> Iterator[tuple[str, object]]:
    """Yield the objects that ``obj`` refers to and that would be pickled with it, each with its description."""
    if isinstance(obj, FunctionType):
        yield from _function_references(obj)
    elif isinstance(obj, MethodType):
        yield "`self`", obj.__self__
        yield "its function", obj.__func__
    elif isinstance(obj, functools.partial):
        yield "the function of the partial", obj.func
        yield from ((f"argument {i} of the partial", value) for i, value in enumerate(obj.args))
        yield from ((f"argument `{name}` of the partial", value) for name, value in obj.keywords.items())
    elif isinstance(obj, Mapping):
        yield from ((f"[{key!r:.40}]", value) for key, value in obj.items())
    elif isinstance(obj, list | tuple | deque):
        yield from ((f"[{i}]", value) for i, value in enumerate(obj))
    elif isinstance(obj, set | frozenset):
        yield from (("an element", value) for value in obj)
    else:
        yield from ((f"`.{name}`", value) for name, value in _attributes(obj).items())


def _function_references(function: FunctionType) -> Iterator[tuple[str, object]]:
    """Yield the globals, closure variables, default values and attributes of a function."""
    code = function.__code__
    names = {
        str(instruction.argval): None
        for part in code_objects(code)
        for instruction in dis.get_instructions(part)
        if instruction.opname == "LOAD_GLOBAL"
    }
    for name in names:
        if name in function.__globals__:
            yield f"`{name}` (global)", function.__globals__[name]
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f"`{name}` (closure variable)", cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    positional = code.co_varnames[: code.co_argcount]
    defaults = function.__defaults__ or ()
    for name, value in zip(positional[len(positional) - len(defaults) :], defaults, strict=True):
        yield f"`{name}` (default value)", value
    for name, value in (function.__kwdefaults__ or {}).items():
        yield f"`{name}` (default value)", value
    for name, value in function.__dict__.items():
        yield f"`.{name}` (attribute of the function)", value


def _attributes(obj: object) -> dict[str, Any]:
    """Return the attributes of an object, including those in slots."""
    found = dict(getattr(obj, "__dict__", {}))
    if isinstance(obj, ModuleType):
        found.pop("__builtins__", None)  # not pickled with it; libraries, such as pybind11's, store values there
    for kind in type(obj).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(obj, name):
                found.setdefault(name, getattr(obj, name))
    return found


def find_deepest(
    choices: Iterable[tuple[str, object]], follow: Callable[[object], bool]
) -> tuple[list[str], object] | None:
    """Return the path to the deepest object for which ``follow`` returns True, and that object; None if there is none.

    Args:
        choices: Objects to begin with, each with its description.
        follow: Condition for following an object's references.
    """
    path: list[str] = []
    visited: set[int] = set()
    found: object = None
    while len(path) < MAX_DEPTH:
        step = next((c for c in choices if id(c[1]) not in visited and follow(c[1])), None)
        if step is None:
            break
        path.append(step[0])
        found = step[1]
        visited.add(id(found))
        if refusal(found) is not None:  # the message shall name this object, not the lock inside it
            break
        choices = references(found)
    return (path, found) if path else None


# -- the user's own modules


def is_user_module(module: ModuleType) -> bool:
    """Return True if it is a source file of the user's own: not installed, not of the standard library."""
    top = module.__name__.partition(".")[0]
    path = getattr(module, "__file__", None)
    return top not in INSTALLED and module.__name__ != "__main__" and path is not None and is_user_path(path)


@functools.lru_cache(maxsize=4096)
def is_user_path(path: str) -> bool:
    """Return True if a module's file is the user's own."""
    file = Path(path)
    if file.suffix != ".py" or {"site-packages", "dist-packages"} & set(file.parts):
        return False
    return not any(str(file).startswith(folder) for folder in _installed_folders()) and not _among_wheels(file)


@functools.cache
def _installed_folders() -> tuple[str, ...]:
    """Return the folders of installed packages, each with a final slash."""
    folders = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += [*site.getsitepackages(), site.getusersitepackages()]
    return tuple({folder.rstrip("/") + "/" for folder in folders})


def _among_wheels(file: Path) -> bool:
    """Return True if pip installed it with ``--target``, which leaves .dist-info folders next to the package."""
    folder = file.parent
    while (folder / "__init__.py").exists():
        folder = folder.parent
    return _has_wheels(folder)


@functools.lru_cache(maxsize=1024)
def _has_wheels(folder: Path) -> bool:
    """Return True if the folder contains metadata of installed packages."""
    return next(folder.glob("*.dist-info"), None) is not None
