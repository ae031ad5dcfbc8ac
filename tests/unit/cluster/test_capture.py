"""Tests of the serialisation of functions; objects that cannot be sent are named with their path."""

from __future__ import annotations

import asyncio
import builtins
import functools
import hashlib
import importlib
import inspect
import io
import logging
import pickle
import queue
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import numpy as np
import pandas as pd
import pytest

from hopsml.cluster.driver import capture as capture_module
from hopsml.cluster.driver.capture import capture
from hopsml.cluster.driver.captured_objects import is_user_path, refusal
from hopsml.errors import ArgumentError, ArgumentTypeError, CaptureError
from hopsml.maggy import distributed
from tests.helpers.clock import END_S

pytestmark = pytest.mark.fast

FACTOR = 3
RESTORE = """
import pickle, sys
function, args = pickle.load(sys.stdin.buffer)
print(function(**args))
"""


def run_in_other_process(payload: bytes, folder: Path) -> str:
    """Call the function in a process without the user's files and hopsml: with Python's path and cloudpickle only."""
    done = subprocess.run(
        [sys.executable, "-c", RESTORE], input=payload, capture_output=True, cwd=folder, timeout=END_S
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


@pytest.fixture
def user_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ModuleType]]:
    """Writes modules of a user's own and imports the first one."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    before = set(sys.modules)

    def write(**files: str) -> ModuleType:
        for name, text in files.items():
            path = folder / (name.replace("_in_", "/") + ".py")
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        importlib.invalidate_caches()
        return importlib.import_module(next(iter(files)))

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


# -- captured objects


def scaled(x: int, by: int = 2) -> int:
    return x * by * FACTOR


def test_function_of_a_test_module_runs_in_a_process_without_that_module(tmp_path: Path) -> None:
    captured = capture(scaled, {"x": 5})
    assert captured.name == "scaled"
    assert run_in_other_process(captured.payload, tmp_path) == "30"


def test_captured_code_keeps_its_file_name_and_source() -> None:
    function, _ = pickle.loads(capture(lambda: scaled(1)).payload)
    code = function.__code__
    assert (code.co_filename, code.co_name) == (__file__, "<lambda>")
    assert function.__globals__["scaled"].__code__.co_filename == __file__
    assert inspect.getsource(function.__globals__["scaled"]).startswith("def scaled")


def test_payload_unpickles_to_function_and_arguments() -> None:
    offset = 10

    def train(a: int, b: int) -> int:
        return a + b + offset

    function, args = pickle.loads(capture(train, {"a": 1, "b": 2}).payload)
    assert function(**args) == 13
    assert pickle.loads(capture(train).payload)[1] == {}


def test_modules_of_the_user_are_shipped_by_value(user_files: Callable[..., ModuleType], tmp_path: Path) -> None:
    """train.py uses functions, classes and modules of helpers.py and a package; the process has no such files."""
    train = user_files(
        train=(
            "import helpers\n"
            "from helpers import Point\n"
            "import pack.deep\n"
            "def train(x):\n"
            "    return helpers.double(x) + Point(x).moved().x + pack.deep.LIMIT\n"
        ),
        helpers=(
            "from dataclasses import dataclass\n"
            "def double(x):\n    return 2 * x\n"
            "@dataclass\nclass Point:\n    x: int\n    def moved(self):\n        return Point(self.x + 1)\n"
        ),
        pack_in___init__="",
        pack_in_deep="LIMIT = 100\n",
    )
    assert run_in_other_process(capture(train.train, {"x": 5}).payload, tmp_path) == "116"
    point = sys.modules["helpers"].Point(7)
    assert run_in_other_process(capture(lambda point: point.moved().x, {"point": point}).payload, tmp_path) == "8"


def test_capture_leaves_cloudpickles_by_value_registry_unchanged(user_files: Callable[..., ModuleType]) -> None:
    train = user_files(train="import helpers\ndef train():\n    return helpers.A\n", helpers="A = 1\n")
    cloudpickle.register_pickle_by_value(sys.modules["helpers"])
    try:
        capture(train.train)
        assert cloudpickle.list_registry_pickle_by_value() == {"helpers"}
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules["helpers"])


def test_importable_modules_are_pickled_by_name(user_files: Callable[..., ModuleType]) -> None:
    train = user_files(train="import helpers\ndef train():\n    return helpers.A\n", helpers="A = 1\nUNIQUE_TEXT = 1\n")
    assert b"UNIQUE_TEXT" in capture(train.train).payload
    assert b"UNIQUE_TEXT" not in capture(train.train, importable=["helpers"]).payload


def test_partials_methods_and_callable_objects_are_captured(tmp_path: Path) -> None:
    class Trainer:
        def __init__(self, rate: int) -> None:
            self.rate = rate

        def __call__(self, x: int) -> int:
            return x * self.rate

        def train(self, x: int) -> int:
            return x + self.rate

    assert run_in_other_process(capture(functools.partial(scaled, by=10), {"x": 1}).payload, tmp_path) == "30"
    assert run_in_other_process(capture(Trainer(4).train, {"x": 1}).payload, tmp_path) == "5"
    captured = capture(Trainer(4), {"x": 2})
    assert captured.name.endswith("Trainer")
    assert run_in_other_process(captured.payload, tmp_path) == "8"


def test_arrays_loggers_and_buffers_are_shipped() -> None:
    args = {
        "array": np.arange(3),
        "path": Path("a"),
        "logger": logging.getLogger("x"),
        "buffer": io.BytesIO(b"abc"),
        "text": io.StringIO("abc"),
        "nothing": None,
    }
    _, restored = pickle.loads(capture(lambda **kw: kw, args).payload)
    assert restored["array"].tolist() == [0, 1, 2]
    assert restored["buffer"].getvalue() == b"abc"


def test_function_that_prints_to_stdout_is_captured() -> None:
    def train() -> None:
        print("step", file=sys.stdout)

    function, _ = pickle.loads(capture(train).payload)
    function()


# -- descriptions


def test_code_hash_ignores_arguments_and_payload_hash_includes_them() -> None:
    captured = capture(scaled, {"x": 1})
    assert captured.source == "def scaled(x: int, by: int = 2) -> int:\n    return x * by * FACTOR\n"
    assert captured.sha256 == hashlib.sha256(captured.payload).hexdigest()
    other = capture(scaled, {"x": 2})
    assert other.sha256 != captured.sha256
    assert other.code_sha256 == captured.code_sha256
    assert capture(functools.partial(scaled, 1)).source == captured.source


def test_code_hash_without_source_distinguishes_different_code() -> None:
    space: dict[str, Any] = {}
    results = {"typed": "x + 1", "other": "x * 1", "first": "x.append(1)", "last": "x.remove(1)", "again": "x + 1"}
    exec("".join(f"def {name}(x):\n    return {result}\n" for name, result in results.items()), space)
    captured = capture(space["typed"])
    assert captured.source == ""
    hashes = {name: capture(space[name]).code_sha256 for name in results}
    assert hashes["again"] == hashes["typed"] and len(set(hashes.values())) == 4  # also where only a name differs


def test_code_hash_without_source_distinguishes_constants_and_defaults() -> None:
    space: dict[str, Any] = {}
    exec("def tenth(x=1):\n  return 0.1\ndef fifth(x=1):\n  return 0.2\ndef of_two(x=2):\n  return 0.1\n", space)
    exec("class One:\n  def __call__(self): return 1\nclass Two:\n  def __call__(self): return 2\n", space)
    functions = [space["tenth"], space["fifth"], space["of_two"], space["One"](), space["Two"]()]
    assert len({capture(function).code_sha256 for function in functions}) == 5


def test_preload_lists_frameworks_imported_in_nested_functions_and_modules(
    user_files: Callable[..., ModuleType],
) -> None:
    def nested() -> Any:
        def inner() -> Any:
            import torch.nn.functional

            return torch

        from tensorflow.keras import layers

        return inner, layers

    assert capture(nested).preload == ("tensorflow", "torch")
    assert capture(lambda: np.zeros(1)).preload == ("numpy",)
    assert capture(scaled).preload == ()
    train = user_files(
        train="import helpers\ndef train():\n    return helpers.model()\n",
        helpers="def model():\n    import sklearn.svm\n    import json\n    return sklearn.svm\n",
    )
    assert capture(train.train).preload == ("sklearn",)


def test_preload_includes_frameworks_that_used_hopsml_modules_need() -> None:
    def attribute() -> Any:
        import hopsml

        return hopsml.tensorflow.strategy()  # type: ignore[attr-defined]

    def submodule() -> Any:
        import hopsml.tensorflow as ht

        return ht

    def neither() -> Any:
        import hopsml

        return hopsml

    assert capture(attribute).preload == ("tensorflow",)
    assert capture(submodule).preload == ("tensorflow",)
    assert capture(neither).preload == ()


def test_user_modules_imported_inside_the_function_are_reported(
    user_files: Callable[..., ModuleType], caplog: pytest.LogCaptureFixture
) -> None:
    train = user_files(
        train="def train():\n    import json, numpy, models, no_such_module\n    return models\n",
        models="raise RuntimeError('must not be imported here')\n",
    )
    captured = capture(train.train)
    assert captured.own_imports == ("models",)
    assert "train imports models when it is called" in caplog.text
    assert capture(train.train, importable=["models"]).own_imports == ()


# -- what is refused


def unshippable() -> Iterator[tuple[str, Any, str]]:
    pool = ThreadPoolExecutor(1)
    yield "lock", threading.Lock(), "create it inside the function"
    yield "rlock", threading.RLock(), "create it inside the function"
    yield "event", threading.Event(), "create it inside the function"
    yield "thread", threading.current_thread(), "create it inside the function"
    yield "queue", queue.Queue(), "create it inside the function"
    yield "pool", pool, "create it inside the function"
    yield "generator", (i for i in range(3)), "or pass a list"
    with socket.socket() as sock:
        yield "socket", sock, "open it inside the function"
    with open(__file__) as text:
        yield "file", text, "open it inside the function, by its path"
    with open(__file__, "rb") as binary:
        yield "binary", binary, "open it inside the function, by its path"
    database = sqlite3.connect(":memory:")
    yield "database", database, "open it inside the function"
    database.close()
    pool.shutdown()


def test_imports_of_a_nested_function_are_reported_if_its_module_is_importable(
    user_files: Callable[..., ModuleType],
) -> None:
    nested = "def make():\n    def train():\n        import helpers\n        return helpers.A\n    return train\n"
    plain = "def train():\n    import helpers\n    return helpers.A\n"
    factory = user_files(factory=f"{nested}{plain}", helpers="A = 1\n")
    assert capture(factory.make(), importable=["factory"]).own_imports == ("helpers",)  # pickled by value
    assert capture(factory.train, importable=["factory"]).own_imports == ()  # pickled by name


def test_unshippable_object_is_named_with_its_path_and_a_remedy() -> None:
    kinds = 0
    for name, value, remedy in unshippable():
        kinds += 1

        def closure(value: Any = None, *, held: Any = value) -> Any:
            return value, held

        with pytest.raises(CaptureError) as caught:
            capture(closure)
        assert "closure captures `held` (default value), a " in str(caught.value), name
        assert type(value).__name__ in str(caught.value), name
        assert remedy in str(caught.value), name

        with pytest.raises(CaptureError, match=r"scaled captures args\['x'\] → \['deep'\] → \[1\], a "):
            capture(scaled, {"x": {"deep": [0, value]}})
    assert kinds == 11


def test_coroutines_are_refused() -> None:
    waiting = asyncio.sleep(0)
    with pytest.raises(CaptureError, match=r"args\['x'\], a coroutine, whose state cannot be copied"):
        capture(scaled, {"x": waiting})
    waiting.close()


spark = threading.Lock()


def helper() -> Any:
    return spark


def test_path_to_an_unshippable_object_includes_helpers_and_closures() -> None:
    class Config:
        __slots__ = ("locks",)

        def __init__(self) -> None:
            self.locks = {"a": threading.Lock()}

    config = Config()

    def train() -> Any:
        return config

    def outer() -> Any:
        return helper()

    with pytest.raises(CaptureError) as caught:
        capture(train)
    assert "train captures `config` (closure variable) → `.locks` → ['a'], a _thread.lock" in str(caught.value)
    with pytest.raises(CaptureError) as caught:
        capture(outer)
    assert "outer captures `helper` (global) → `spark` (global), a _thread.lock" in str(caught.value)


def test_unshippable_object_of_a_nested_function_is_named() -> None:
    lock = threading.Lock()

    def train() -> Any:
        def step() -> Any:
            return lock

        return step

    with pytest.raises(CaptureError, match="`lock` \\(closure variable\\)"):
        capture(train)


def test_path_to_an_unshippable_object_includes_self_and_partial_arguments() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.lock = threading.Lock()

        def train(self) -> None: ...

    with pytest.raises(CaptureError, match=r"captures `self` → `\.lock`"):
        capture(Trainer().train)
    with pytest.raises(CaptureError, match=r"captures argument `x` of the partial, a _thread\.lock"):
        capture(functools.partial(scaled, x=threading.Lock()))


def test_object_whose_pickling_raises_is_named_with_the_error() -> None:
    class Stubborn:
        def __reduce__(self) -> Any:
            raise RuntimeError("not today")

    message = r"captures args\['x'\] → \[0\], a .*Stubborn, which cannot be pickled \(RuntimeError: not today\)"
    with pytest.raises(CaptureError, match=message) as caught:
        capture(scaled, {"x": [Stubborn()]})
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_unpicklable_global_of_a_user_module_is_named(
    user_files: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builtins, "_of_a_library", threading.Lock(), raising=False)  # as pybind11's libraries have it
    train = user_files(
        train="import state\ndef train():\n    return state.LOCK\n",
        state="import threading\nLOCK = threading.Lock()\n",
    )
    with pytest.raises(CaptureError, match=r"`state` \(global\) → `.LOCK`, a _thread.lock"):
        capture(train.train)


def test_unshippable_object_in_a_cyclic_list_is_named() -> None:
    circle: list[Any] = []
    circle.append(circle)
    circle.append(threading.Lock())
    with pytest.raises(CaptureError, match=r"args\['x'\] → \[1\], a _thread.lock"):
        capture(scaled, {"x": circle})


def test_too_deep_nesting_raises_capture_error() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(CaptureError, match="recursion"):
        capture(scaled, {"x": deep})


def framework_object(module: str, name: str, **attributes: object) -> Any:
    """Return an object with the module and name of a framework that is not installed, or too slow to start."""
    return type(name, (), {"__module__": module, **attributes})()


@pytest.mark.parametrize(
    ("module", "name", "remedy"),
    [
        ("pyspark.sql.session", "SparkSession", "use it before the launch"),
        ("pyspark.core.context", "SparkContext", "cannot start Spark jobs"),
        ("pyspark.sql.connect.session", "SparkSession", "cannot start Spark jobs"),
        ("pyspark.sql.classic.dataframe", "DataFrame", "pass it by data={...}"),
        ("pyspark.core.rdd", "RDD", "or write it to shared storage"),
        ("pyspark.sql.classic.column", "Column", "df.withColumn(...) before the launch"),
        ("pyspark.accumulators", "Accumulator", "send it by hopsml.report(...)"),
        ("pyspark.core.broadcast", "Broadcast", "pass its .value in args"),
        ("py4j.java_gateway", "JavaObject", "use it before the launch"),
        ("tensorflow.python.framework.ops", "EagerTensor", "NumPy arrays"),
    ],
)
def test_framework_objects_are_refused_with_a_remedy(module: str, name: str, remedy: str) -> None:
    held = framework_object(module, name)
    with pytest.raises(CaptureError) as caught:
        capture(lambda: held)
    assert f"`held` (closure variable), a {module}.{name}, " in str(caught.value)
    assert remedy in str(caught.value)


def test_only_device_tensors_are_refused() -> None:
    def tensor(device: str) -> Any:
        return framework_object("torch", "Tensor", device=framework_object("torch", "device", type=device))

    assert refusal(tensor("cpu")) is None
    for device in ("cuda", "mps", "meta"):
        refused = refusal(tensor(device))
        assert refused is not None
        assert "CPU tensor" in refused.remedy
    pandas_like = framework_object("pandas.core.frame", "DataFrame")
    assert refusal(pandas_like) is None


@pytest.mark.parametrize("function", [None, 3, "train"])
def test_value_that_is_not_a_function_is_refused(function: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="the argument must be a function"):
        capture(function)


@pytest.mark.parametrize("args", [[1], "lr", {1: 2}])
def test_arguments_that_are_not_a_dict_of_names_are_refused(args: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="it must be a dict of values by parameter name"):
        capture(scaled, args)


def test_capture_errors_are_argument_errors() -> None:
    with pytest.raises(ArgumentError):
        capture(scaled, {"x": threading.Lock()})
    with pytest.raises(ValueError):
        capture(scaled, {"x": threading.Lock()})


# -- sizes


def test_payload_above_the_limit_names_the_largest_objects() -> None:
    big = {"images": np.zeros(3 * 2**20, np.uint8)}
    small = np.zeros(2**20, np.uint8)

    def train() -> Any:
        return big, small

    with pytest.raises(CaptureError) as caught:
        capture(train, {"text": b"x" * 2**19}, limit_bytes=2**21)
    message = str(caught.value)
    assert "train and what it captures take more than the limit of 2.0 MiB" in message
    parts = [
        "`big` (closure variable) → ['images'], a numpy.ndarray, 3.0 MiB",
        "`small` (closure variable), a numpy.ndarray, 1.0 MiB",
        "args['text'], a bytes, 0.5 MiB",
    ]
    assert [message.index(part) for part in parts] == sorted(message.index(part) for part in parts)
    assert (
        "pass a table as a Spark DataFrame by data=" in message
        and "Put arrays and tensors on" in message
        and "shared storage" in message
    )
    capture(train, limit_bytes=5 * 2**20)


class Settings:
    """A class of the user's own that holds data."""

    def __init__(self) -> None:
        self.tables = {"rows": np.zeros(2 * 2**20, np.uint8), "labels": np.zeros(2**19, np.uint8)}
        self.rate = 0.1


def test_oversized_payload_names_variables_of_the_user_not_library_internals() -> None:
    frame = pd.DataFrame({"a": np.zeros(2**18), "b": np.ones(2**18)})
    config = Settings()

    def train(train_set: Any) -> Any:
        return frame, config, np

    images, labels = np.zeros(3 * 2**20, np.uint8), np.zeros(2**20, np.uint8)
    with pytest.raises(CaptureError) as caught:
        capture(train, {"train_set": (images, labels)}, limit_bytes=2**20)
    named = str(caught.value).partition("more than the limit of 1.0 MiB: ")[2].partition(". Put arrays")[0].split("; ")
    assert named == [
        "`frame` (closure variable), a pandas.core.frame.DataFrame, 4.0 MiB",
        "args['train_set'] → [0], a numpy.ndarray, 3.0 MiB",
        "`config` (closure variable) → `.tables` → ['rows'], a numpy.ndarray, 2.0 MiB",
        "args['train_set'] → [1], a numpy.ndarray, 1.0 MiB",
        "`config` (closure variable) → `.tables` → ['labels'], a numpy.ndarray, 0.5 MiB",
    ]


def test_oversized_argument_of_a_wrapped_function_is_named_by_the_users_name() -> None:
    def train(train_set: Any) -> Any:
        return train_set

    given = {"model": None, "train_set": np.zeros(2**21, np.uint8), "test_set": np.zeros(2**20, np.uint8)}
    with pytest.raises(CaptureError) as caught:
        capture(distributed.call_in_strategy_scope, {"function": train, "given": given}, limit_bytes=2**20)
    assert "1.0 MiB: `train_set`, a numpy.ndarray, 2.0 MiB; `test_set`, a numpy.ndarray, 1.0 MiB. Put" in str(
        caught.value
    )


def test_huge_array_is_refused_without_being_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    huge = np.broadcast_to(np.zeros(1, np.uint8), (2**40,))  # a terabyte that takes one byte
    with pytest.raises(CaptureError, match=r"args\['x'\], a numpy.ndarray, 1048576.0 MiB"):
        capture(scaled, {"x": huge})


def test_large_payload_is_logged_as_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(capture_module, "WARNING_BYTES", 2**19)
    capture(scaled, {"x": np.zeros(2**20, np.uint8)})
    assert "take 1.0 MiB, which every worker receives: args['x'], a numpy.ndarray, 1.0 MiB" in caplog.text


def test_payload_of_a_megabyte_or_more_lists_its_large_objects(caplog: pytest.LogCaptureFixture) -> None:
    large = capture(scaled, {"x": np.zeros(2**20, np.uint8)}).large
    assert large.startswith("scaled and what it captures take 1.0 MiB, which every worker receives: args['x'], a numpy")
    assert capture(scaled, {"x": 1}).large == "" and not caplog.text


# -- whose module


def test_is_own_path_is_true_for_user_files_only(tmp_path: Path) -> None:
    assert is_user_path(__file__)
    assert not is_user_path(np.__file__)
    assert not is_user_path(logging.__file__)
    assert not is_user_path(str(tmp_path / "extension.so"))


@pytest.mark.parametrize("by_pip", [False, True])
def test_packages_installed_by_pip_into_a_folder_are_not_user_files(tmp_path: Path, by_pip: bool) -> None:
    package = tmp_path / "lib" / "deep"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    if by_pip:
        (tmp_path / "lib-1.0.dist-info").mkdir()
    assert is_user_path(str(package / "__init__.py")) is not by_pip
