"""Loader of a function named as ``FILE.py:NAME`` on a command line or in a job file."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hopsml.errors import ArgumentError


def load(path: Path, name: str, prefix: str) -> Callable[..., Any]:
    """Return the function ``name`` of a file; modules next to the file can be imported from then on.

    Args:
        path: the file.
        name: name of the function.
        prefix: prefix of the module's name, which makes it impossible to import elsewhere, so that its functions are
            pickled by value.

    Raises:
        ArgumentError: if the file has no such function. Errors of the file itself are passed on.
    """
    spec = importlib.util.spec_from_file_location(f"{prefix}{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise ArgumentError(f"{path} has no function {name}; name one that it has")
    found: Callable[..., Any] = function
    return found
