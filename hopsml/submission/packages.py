"""Python environment of this interpreter, described for shipping: its content and a hash of it."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import sys
import sysconfig
from collections.abc import Iterable, Iterator
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
                f"{prefix} is a conda environment: pack it with conda-pack, put the archive on HDFS and name it with "
                "--ship-environment hdfs://.../environment.tar.gz"
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
    def carries_interpreter(self) -> bool:
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
            "interpreter": "carried" if self.carries_interpreter else str(self.base_executable),
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


def files_of(path: Path) -> Iterator[tuple[Path, str]]:
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
    for file, name in files_of(path):
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
            f"the modules of {found.metadata['Name']}, installed as editable, cannot be found: install it without -e to "
            "ship it"
        )
    return modules


def _named_by_pth(found: importlib.metadata.Distribution) -> Iterable[str]:
    """Yield the modules in the folders that a distribution's .pth files name."""
    for file in found.files or []:
        if file.suffix == ".pth":
            for line in Path(file.locate()).read_text(encoding="utf-8").splitlines():
                if Path(line).is_dir():
                    yield from modules_in(Path(line))
