"""``FILE.py:NAME``: a function that is named on a command line or in a job file, and not imported."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hopsml.errors import ArgumentError


def load(path: Path, name: str, prefix: str) -> Callable[..., Any]:
    """The function ``name`` of a file; modules beside the file can be imported from then on.

    ``prefix``: stands in front of the module's name: it is nobody's to import, so its functions travel as they are. Raises
    ArgumentError where the file has no such function, and whatever the file raises.
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
