"""Packing of a Python environment into a relocatable tar.gz, with all modules compiled.

Without compiled files the first import of TensorFlow on a node takes three times as long. They are marked as not to be
compared with their source, since unpacking may change the source's time.
"""

from __future__ import annotations

import importlib.util
import io
import os
import posixpath
import struct
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from hopsml.submission.packages import Environment, files_of

_COMPRESSION = 1  # higher levels take minutes and save a tenth
_UNCHECKED = 0b01  # flags of a .pyc: identified by a hash of its source, which is not checked
_HEADER = struct.Struct("<4sLLL")
# Spark brings its own jars; TensorFlow's headers are for building extensions, and a fifth of all files.
_WITHOUT = ("pip", "pyspark/jars", "pyspark/examples", "tensorflow/include")
_WITHOUT_OF_PYTHON = ("site-packages", "test", "ensurepip", "idlelib", "turtledemo", "tkinter", "config-")
# Starts an interpreter that searches its shared library at its build location with the one in the archive.
_START = """#!/bin/sh
here=$(cd "$(dirname "$0")" && pwd)
LD_LIBRARY_PATH="$here/../lib${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}" exec "$here/{name}" "$@"
"""


def pack(environment: Environment, target: Path, check: Callable[[], None] = lambda: None) -> int:
    """Write the archive of an environment; return its length in bytes.

    Args:
        environment: the environment to pack.
        target: path of the archive.
        check: called before each file; what it raises aborts the packing.
    """
    library = f"lib/python{environment.python}"
    with tarfile.open(target, "w:gz", compresslevel=_COMPRESSION) as tar:
        _add_interpreter(tar, environment, library)
        seen: set[str] = set()
        for file, name in _packages(environment):
            check()
            if name not in seen:
                seen.add(name)
                _add(tar, file, f"{library}/site-packages/{name}")
    return target.stat().st_size


def _add_interpreter(tar: tarfile.TarFile, environment: Environment, library: str) -> None:
    """Add the interpreter with its standard library, or a link to the system's."""
    name = f"python{environment.python}"
    if environment.carries_interpreter:
        tar.add(environment.base_executable, f"bin/{name}")
        for file, path in files_of(environment.base_prefix / library):
            below = path.partition("/")[2]
            if not below.startswith(_WITHOUT_OF_PYTHON):
                _add(tar, file, f"{library}/{below}")
        for shared in sorted((environment.base_prefix / "lib").glob(f"libpython{environment.python}*.so*")):
            tar.add(shared, f"lib/{shared.name}")
    else:
        _link(tar, f"bin/{name}", str(environment.base_executable))
        home = f"home = {environment.base_executable.parent}\ninclude-system-site-packages = false\n"
        _bytes(tar, "pyvenv.cfg", home.encode())
    if environment.carries_interpreter and environment.needs_library_path:
        _bytes(tar, "bin/python", _START.format(name=name).encode(), 0o755)
    else:
        _link(tar, "bin/python", name)
    _link(tar, "bin/python3", "python")


def _packages(environment: Environment) -> Iterator[tuple[Path, str]]:
    """Yield each file of the packages with its path below site-packages."""
    for path in environment.editable.values():
        yield from files_of(path)
    for folder in environment.site_packages:
        for file, name in files_of(folder):
            below = name.partition("/")[2]
            if not below.startswith("__editable__") and not _below(below, _WITHOUT):
                yield file, below


def _below(name: str, folders: tuple[str, ...]) -> bool:
    return any(name == folder or name.startswith(folder + "/") for folder in folders)


def _add(tar: tarfile.TarFile, file: Path, name: str) -> None:
    """Add a file, and for a module its compiled form."""
    tar.add(file, name, recursive=False)
    if name.endswith(".py") and (compiled := _compiled(file)) is not None:
        cached = posixpath.join(posixpath.dirname(name), "__pycache__", os.path.basename(_cache_of(file)))
        _bytes(tar, cached, compiled)


def _cache_of(file: Path) -> str:
    return importlib.util.cache_from_source(str(file), optimization="")


def _compiled(file: Path) -> bytes | None:
    """Return a .pyc that is never checked against its source; None for a syntax error.

    A current existing one is reused.
    """
    source = file.read_bytes()
    hashed = importlib.util.source_hash(source)
    header = importlib.util.MAGIC_NUMBER + struct.pack("<L", _UNCHECKED) + hashed
    try:
        there = Path(_cache_of(file)).read_bytes()
        magic, flags, modified, length = _HEADER.unpack_from(there)
        facts = file.stat()
        current = (int(facts.st_mtime) & 0xFFFFFFFF, facts.st_size & 0xFFFFFFFF)
        if magic == importlib.util.MAGIC_NUMBER and flags == 0 and (modified, length) == current:
            return header + there[_HEADER.size :]
    except (OSError, struct.error):
        pass
    return _compile(source, file, header)


def _compile(source: bytes, file: Path, header: bytes) -> bytes | None:
    """Compile a module with the given header; return None if that fails."""
    import marshal
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escape sequences in third-party code
            return header + marshal.dumps(compile(source, str(file), "exec", dont_inherit=True))
    except (SyntaxError, ValueError, RecursionError):  # a template, or a test of syntax errors
        return None


def _bytes(tar: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    """Add a file with this content."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime, entry.mode = len(content), int(time.time()), mode
    tar.addfile(entry, io.BytesIO(content))


def _link(tar: tarfile.TarFile, name: str, target: str) -> None:
    """Add a symbolic link."""
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, target, 0o777
    tar.addfile(entry)
