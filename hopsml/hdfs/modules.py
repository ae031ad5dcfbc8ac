"""Modules that are imported from the project's files, and ``log``, which the predecessor keeps beside them."""

from __future__ import annotations

import functools
import importlib
import json
import posixpath
import sys
import tempfile
from pathlib import Path
from typing import Any

from hopsml.errors import ArgumentError
from hopsml.hdfs.paths import AnyPath, to_url
from hopsml.storage import urls
from hopsml.storage.filesystem import for_url


def log(string: Any) -> None:
    """Print; inside a training function that is the worker's log."""
    print(string.decode(errors="replace") if isinstance(string, bytes) else string, flush=True)


def add_module(hdfs_path: AnyPath, project: str | None = None) -> str:
    """Make a ``.py`` or ``.ipynb`` file importable under its name; returns the local path of the module.

    That path is on ``sys.path``, as its folder is. A module that was imported from there is loaded anew.
    """
    url = to_url(hdfs_path, project)
    stem, ending = posixpath.splitext(urls.name(url))
    if ending not in (".py", ".ipynb") or not stem.isidentifier():
        raise ArgumentError(f"{url}: a module is a .py or .ipynb file whose name is a Python identifier")
    content = for_url(url).read_bytes(url)
    folder = _module_folder().name
    target = Path(folder, f"{stem}.py")
    target.write_bytes(content if ending == ".py" else _notebook_code(url, content))
    sys.path += [path for path in (folder, str(target)) if path not in sys.path]
    importlib.invalidate_caches()
    loaded = sys.modules.get(stem)
    if loaded is not None and getattr(loaded, "__file__", None) == str(target):
        importlib.reload(loaded)
    return str(target)


@functools.cache
def _module_folder() -> tempfile.TemporaryDirectory[str]:
    """One for the process, removed with it."""
    return tempfile.TemporaryDirectory(prefix="hopsml-modules-")


def _notebook_code(url: str, content: bytes) -> bytes:
    """The code cells of a notebook as a module; lines of magic are left out."""
    try:
        cells = json.loads(content)["cells"]
    except (ValueError, KeyError, TypeError) as error:
        raise ArgumentError(f"{url}: not a notebook of format 4 ({error!r})") from error
    code = ["".join(cell["source"]) for cell in cells if cell.get("cell_type") == "code"]
    lines = [line for cell in code for line in [*cell.split("\n"), ""]]
    return "\n".join(line for line in lines if not line.lstrip().startswith(("%", "!"))).encode()
