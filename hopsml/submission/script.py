"""Script that is submitted: checks before the submission, and loading of a function named as ``FILE.py:NAME``."""

from __future__ import annotations

import ast
import importlib.util
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from hopsml.errors import ArgumentError


def load_function(path: Path, name: str, prefix: str) -> Callable[..., Any]:
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
        raise ArgumentError(f"{path} has no function {name}; give the name of a function in the file")
    found: Callable[..., Any] = function
    return found


_GUARDS = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}


def parse_script(script: str) -> ast.Module:
    """Return the script's syntax tree.

    Raises:
        ArgumentError: if it does not exist, is no text, or has a syntax error.
    """
    path = Path(script)
    if not path.is_file():
        raise ArgumentError(f"there is no script {script}")
    try:
        return ast.parse(path.read_bytes(), script)
    except SyntaxError as error:
        raise ArgumentError(f"{script}, line {error.lineno}: {error.msg}; nothing was submitted") from error
    except ValueError as error:
        raise ArgumentError(f"{script}: {error}; nothing was submitted") from error
    except (RecursionError, MemoryError) as error:
        raise ArgumentError(
            f"{script}: an expression in the script is nested too deeply to be parsed; nothing was submitted"
        ) from error


def imported_names(tree: ast.AST) -> dict[str, int]:
    """Return the top-level names imported anywhere in a script, functions included, with their first line.

    Excluded are optional imports: within a ``try`` that handles ImportError, and those for type checkers only.
    """
    found: dict[str, int] = {}
    for node in _certain(tree):
        names: Iterable[str] = ()
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names = [node.module]
        for name in names:
            found.setdefault(name.partition(".")[0], getattr(node, "lineno", 0))
    return found


def check_py_files(py_files: str) -> None:
    """Raise ArgumentError if a local file of ``spark.submit.pyFiles``, comma-separated, does not exist."""
    for item in filter(None, (part.strip() for part in py_files.split(","))):
        path = item.removeprefix("file://")
        if "://" not in path and not path.startswith("local:") and not Path(path).exists():
            raise ArgumentError(f"{item} of --py-files (spark.submit.pyFiles) does not exist; nothing was submitted")


def py_file_modules(py_files: str) -> set[str] | None:
    """Return the top-level modules of ``spark.submit.pyFiles``, comma-separated; None if an archive cannot be read."""
    found: set[str] = set()
    for item in (part.strip() for part in py_files.split(",")):
        path = Path(item.removeprefix("file://"))
        if path.suffix == ".py":
            found.add(path.stem)
        elif zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as content:
                found |= {name.partition("/")[0].partition(".")[0] for name in content.namelist()}
        elif item:
            return None
    return found


def _certain(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield every node except those that may fail, or never run."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Try) and any(_handles_import_error(handler) for handler in node.handlers):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from _certain(node)


def _handles_import_error(handler: ast.ExceptHandler) -> bool:
    """Return True if an exception handler catches ImportError."""
    if handler.type is None:
        return True
    names = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(ast.unparse(name) in _GUARDS for name in names)
