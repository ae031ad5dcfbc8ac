"""Python environment of this interpreter: its content, a hash of it, and a relocatable tar.gz with all modules compiled.

Without compiled files the first import of TensorFlow on a node takes three times as long. They are marked as not to be
compared with their source, since unpacking may change the source's time.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import io
import json
import os
import platform
import posixpath
import struct
import sys
import sysconfig
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hopsml.errors import ArgumentError

LAYOUT = 1  # of the archive; a new number makes existing archives unused
# Spark itself provides these to every driver and executor.
BY_SPARK = frozenset({"pyspark", "py4j"})
_SHARED_LIBRARY = b"$ORIGIN"  # mark of an interpreter that finds its libpython relative to itself


@dataclass(frozen=True)
class Environment:
    """Packages and interpreter of an environment.

    ``editable`` maps the top-level modules of projects installed by ``-e`` to their file or folder.
    """

    prefix: Path
    site_packages: tuple[Path, ...]
    packages: dict[str, str]  # name -> version, with the source if that is no registry
    editable: dict[str, Path]
    base_prefix: Path
    base_executable: Path

    @classmethod
    def current(cls) -> Environment:
        """Return the environment of this interpreter.

        Raises:
            ArgumentError: for conda, which has its own tool for packing.
        """
        prefix = Path(sys.prefix)
        if (prefix / "conda-meta").is_dir():
            raise ArgumentError(
                f"{prefix} is a conda environment, which hopsml cannot pack; pack it with conda-pack, copy the "
                "archive to HDFS, and pass --ship-environment hdfs://.../environment.tar.gz"
            )
        folders = tuple(dict.fromkeys(Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")))
        packages: dict[str, str] = {}
        editable: dict[str, Path] = {}
        for found in importlib.metadata.distributions(path=[str(folder) for folder in folders]):
            name = found.metadata["Name"]
            source = json.loads(found.read_text("direct_url.json") or "{}")
            if source.get("dir_info", {}).get("editable"):
                editable |= _editable_modules(found)
                source = {}  # its location is irrelevant, its content is hashed
            if "dir_info" in source:  # a folder's version does not identify its content
                record = found.read_text("RECORD") or ""
                source["content"] = hashlib.sha256(record.encode()).hexdigest()
            packages[name.lower()] = found.version + (f" {json.dumps(source, sort_keys=True)}" if source else "")
        base = Path(getattr(sys, "_base_executable", None) or sys.executable).resolve()
        return cls(prefix, folders, packages, editable, Path(sys.base_prefix), base)

    @property
    def python(self) -> str:
        """Major and minor version of the interpreter, for instance ``3.11``."""
        return f"{sys.version_info.major}.{sys.version_info.minor}"

    @property
    def includes_interpreter(self) -> bool:
        """True if the archive includes the interpreter, so that nodes need no Python.

        The system's own, below /usr, is not included: nodes must have it at the same path.
        """
        return self.base_prefix != Path("/usr")

    @property
    def needs_library_path(self) -> bool:
        """True if the interpreter searches its shared library at an absolute path."""
        is_shared = bool(sysconfig.get_config_var("Py_ENABLE_SHARED"))
        return is_shared and _SHARED_LIBRARY not in self.base_executable.read_bytes()

    @cached_property
    def hash(self) -> str:
        """Hash of the packages with their versions, the interpreter, and the content of editable projects."""
        content = {
            "layout": LAYOUT,
            "python": [sys.implementation.cache_tag, platform.python_version(), sysconfig.get_platform()],
            "interpreter": "carried" if self.includes_interpreter else str(self.base_executable),
            "packages": sorted(self.packages.items()),
            "editable": {name: _content_hash(path) for name, path in sorted(self.editable.items())},
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    @cached_property
    def modules(self) -> frozenset[str]:
        """Top-level module names that can be imported from the archive."""
        found = set(sys.stdlib_module_names) | set(self.editable) | BY_SPARK
        for folder in self.site_packages:
            found |= set(modules_in(folder))
        return frozenset(found)


def modules_in(folder: Path) -> Iterator[str]:
    """Yield the top-level modules and packages of a folder of the import path."""
    for entry in os.scandir(folder) if folder.is_dir() else ():
        name, _, suffix = entry.name.partition(".")
        if not name.isidentifier() or name == "__pycache__":
            continue
        if (entry.is_dir() and not suffix) or suffix == "py" or entry.name.endswith(".so"):
            yield name


def uncompiled_files(path: Path) -> Iterator[tuple[Path, str]]:
    """Yield the uncompiled files below a folder (or the file itself), each with its path below the folder's parent."""
    if path.is_file():
        yield path, path.name
        return
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(names):
            if not name.endswith((".pyc", ".pyo")):
                file = Path(folder, name)
                yield file, str(file.relative_to(path.parent))


def _content_hash(path: Path) -> str:
    """Return a hash of the files below a path."""
    digest = hashlib.sha256()
    for file, name in uncompiled_files(path):
        content = file.read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def _editable_modules(found: importlib.metadata.Distribution) -> dict[str, Path]:
    """Return the locations of the modules of a project that was installed by ``-e``."""
    names = (found.read_text("top_level.txt") or "").split() or list(_named_by_pth(found))
    modules = {}
    for name in names:
        spec = importlib.util.find_spec(name)
        where = list(spec.submodule_search_locations or []) if spec is not None else []
        if where or (spec is not None and spec.origin):
            modules[name] = Path(where[0] if where else str(spec.origin if spec is not None else ""))
    if not modules:
        raise ArgumentError(
            f"the modules of {found.metadata['Name']}, an editable installation, cannot be found; install it without "
            "-e to ship it"
        )
    return modules


def _named_by_pth(found: importlib.metadata.Distribution) -> Iterable[str]:
    """Yield the modules in the folders that a distribution's .pth files name."""
    for file in found.files or []:
        if file.suffix == ".pth":
            for line in Path(file.locate()).read_text(encoding="utf-8").splitlines():
                if Path(line).is_dir():
                    yield from modules_in(Path(line))


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
    if environment.includes_interpreter:
        tar.add(environment.base_executable, f"bin/{name}")
        for file, path in uncompiled_files(environment.base_prefix / library):
            below = path.partition("/")[2]
            if not below.startswith(_WITHOUT_OF_PYTHON):
                _add(tar, file, f"{library}/{below}")
        for shared in sorted((environment.base_prefix / "lib").glob(f"libpython{environment.python}*.so*")):
            tar.add(shared, f"lib/{shared.name}")
    else:
        _link(tar, f"bin/{name}", str(environment.base_executable))
        home = f"home = {environment.base_executable.parent}\ninclude-system-site-packages = false\n"
        _bytes(tar, "pyvenv.cfg", home.encode())
    if environment.includes_interpreter and environment.needs_library_path:
        _bytes(tar, "bin/python", _START.format(name=name).encode(), 0o755)
    else:
        _link(tar, "bin/python", name)
    _link(tar, "bin/python3", "python")


def _packages(environment: Environment) -> Iterator[tuple[Path, str]]:
    """Yield each file of the packages with its path below site-packages."""
    for path in environment.editable.values():
        yield from uncompiled_files(path)
    for folder in environment.site_packages:
        for file, name in uncompiled_files(folder):
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
