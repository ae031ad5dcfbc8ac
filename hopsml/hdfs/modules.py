"""Import of modules from the project's files, and ``log``, which the predecessor has in the same module."""

from __future__ import annotations

import functools
import importlib
import io
import json
import posixpath
import sys
import tempfile
import tokenize
from pathlib import Path
from typing import Any

from hopsml.errors import ArgumentError
from hopsml.hdfs.paths import AnyPath, to_url
from hopsml.storage import urls
from hopsml.storage.filesystem import for_url

_OF_PYTHON = ("time", "timeit", "capture", "prun")  # magics of a cell whose other lines are Python


def log(string: Any) -> None:
    """Print a text to standard output; inside a training function it goes to the worker's log."""
    print(string.decode(errors="replace") if isinstance(string, bytes) else string, flush=True)


def add_module(hdfs_path: AnyPath, project: str | None = None) -> str:
    """Make a ``.py`` or ``.ipynb`` file importable under its name; return the local path of the module.

    That path is on ``sys.path``, as is its folder. A module that was imported from there is reloaded.
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
    """Return the process's folder for modules, which is deleted with the process."""
    return tempfile.TemporaryDirectory(prefix="hopsml-modules-")


def _notebook_code(url: str, content: bytes) -> bytes:
    """Return the code cells of a notebook as a module, without lines of magics."""
    try:
        cells = json.loads(content)["cells"]
    except (ValueError, KeyError, TypeError) as error:
        raise ArgumentError(f"{url}: not a notebook of format 4 ({error!r})") from error
    code = ["".join(cell["source"]) for cell in cells if cell.get("cell_type") == "code"]
    return "\n".join(line for cell in code for line in [*_without_magic(cell), ""]).encode()


def _without_magic(cell: str) -> list[str]:
    """Return a cell's lines of Python.

    Only a line that begins a statement can be magic: ``% 3`` may continue an expression.
    """
    lines = cell.split("\n")
    first = next((line for line in lines if line.strip()), "")
    if first.startswith("%%") and first[2:].split(" ")[0] not in _OF_PYTHON:
        return []  # a cell of another language
    kept, statement = list[str](), list[str]()
    for line in lines:
        if not statement and line.lstrip().startswith(("%", "!")):
            continue
        statement.append(line)
        if not _goes_on("\n".join(statement)):
            kept, statement = [*kept, *statement], []
    return kept + statement


def _goes_on(text: str) -> bool:
    """Return True if a statement continues in the next line: within brackets or a string, or after a backslash."""
    try:
        for _ in tokenize.generate_tokens(io.StringIO(text + "\n").readline):
            pass
    except tokenize.TokenError:
        return True
    except SyntaxError:  # an indentation that the preceding lines would explain
        pass
    return text.endswith("\\")
