"""Distributed training on Spark executors: run a function there, and store its results on shared storage.

This is the public interface. Every name is imported on first use: importing hopsml imports no framework, no Spark and
no network code, because it happens in every executor and every worker.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

__version__ = "0.1.0"

_MODULES = (
    "data", "devices", "distributed", "elastic", "errors", "experiment", "hdfs", "job", "large_batch", "model",
    "numpy_helper", "pandas_helper", "serving", "tensorboard", "tensorflow", "tflauncher", "torch", "tracking", "util",
)  # fmt: skip

__all__ = [
    "Searchspace",
    "__version__",
    "all_gather",
    "all_reduce",
    "barrier",
    "broadcast",
    "cached",
    "data",
    "devices",
    "distributed",
    "elastic",
    "errors",
    "experiment",
    "hdfs",
    "job",
    "large_batch",
    "load_checkpoint",
    "model",
    "numpy_helper",
    "pandas_helper",
    "receive",
    "report",
    "send",
    "serving",
    "tensorboard",
    "tensorflow",
    "tflauncher",
    "torch",
    "tracking",
    "trial",
    "util",
]

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

    import hopsml.data as data
    import hopsml.devices as devices
    import hopsml.distributed as distributed
    import hopsml.elastic as elastic
    import hopsml.errors as errors
    import hopsml.experiment as experiment
    import hopsml.hdfs as hdfs
    import hopsml.job as job
    import hopsml.large_batch as large_batch
    import hopsml.model as model
    import hopsml.numpy_helper as numpy_helper
    import hopsml.pandas_helper as pandas_helper
    import hopsml.serving as serving
    import hopsml.tensorboard as tensorboard
    import hopsml.tensorflow as tensorflow
    import hopsml.tflauncher as tflauncher
    import hopsml.torch as torch
    import hopsml.tracking as tracking
    import hopsml.util as util
    from hopsml.search.space.space import Searchspace
    from hopsml.training.cached import cached
    from hopsml.training.collective import all_gather, all_reduce, barrier, broadcast
    from hopsml.training.loading import load_checkpoint
    from hopsml.training.messages import receive, report, send
    from hopsml.training.trials.trial import trial

_FUNCTIONS = {
    "Searchspace": "hopsml.search.space.space",
    **dict.fromkeys(("all_gather", "all_reduce", "barrier", "broadcast"), "hopsml.training.collective"),
    "cached": "hopsml.training.cached",
    "load_checkpoint": "hopsml.training.loading",
    "receive": "hopsml.training.messages",
    "report": "hopsml.training.messages",
    "send": "hopsml.training.messages",
    "trial": "hopsml.training.trials.trial",
}


class Refusals:
    """Import finder that raises an error with the reason why a package does not have a name.

    ``from package import name`` drops the message of the AttributeError that the package's ``__getattr__`` raises so
    that ``hasattr`` is False, and searches for a module of that name. This finder is the last one: it is called for
    names that no other finder has. It also finds modules under names that they had in records of earlier versions.
    """

    _reasons: ClassVar[dict[str, Callable[[str], str]]] = {}

    @classmethod
    def add(cls, package: str, reason: Callable[[str], str]) -> None:
        """Register ``reason``, which returns why the package lacks a name, or an empty string for an unknown name."""
        cls._reasons[package] = reason

    @classmethod
    def find_spec(cls, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return how to import a moved module; raise ModuleNotFoundError with the reason, if there is one, for others.

        A call that only tests if the module exists (``importlib.util.find_spec``) gets None for any unknown module.
        """
        package, _, name = fullname.rpartition(".")
        if fullname.startswith("hopsml."):
            from hopsml.core import moved_names

            if spec := moved_names.find_spec(fullname):
                return spec
        imports = sys._getframe(2).f_code.co_name == "_find_and_load_unlocked"
        if imports and package.partition(".")[0] == "hopsml":
            from hopsml.core import refused_names

            own = cls._reasons.get(package)
            if reason := (own(name) if own else "") or refused_names.refusal(package, name):
                raise _shortened(ModuleNotFoundError(reason))
        return None


sys.meta_path.append(Refusals)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"hopsml.{name}")
    if name in _FUNCTIONS:
        return getattr(importlib.import_module(_FUNCTIONS[name]), name)
    from hopsml.core import refused_names

    text = refused_names.refusal(__name__, name)
    error = AttributeError(text or f"module 'hopsml' has no attribute '{name}'; it has: {', '.join(__all__)}")
    raise error if name.startswith("_") else _shortened(error)


def _shortened(error: Exception) -> Exception:
    """Make notebooks and scripts show an error without hopsml's frames, and return it."""
    from hopsml.core import tracebacks

    importlib.import_module("hopsml.errors")  # makes Python show uncaught errors so
    return tracebacks.shortened(error)


def load_ipython_extension(shell: Any) -> None:
    """Register the magics ``%runs``, ``%logs``, ``%tensorboard_run`` and ``%hopsml_ui``, for ``%load_ext hopsml``."""
    from hopsml.notebook import magics

    magics.register(shell)


def __dir__() -> list[str]:
    return list(__all__)
