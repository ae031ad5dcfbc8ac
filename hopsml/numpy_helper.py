"""NumPy files in the project, under the predecessor's names: ``numpy_helper.load("Resources/x.npy")``.

Paths are those of ``hopsml.hdfs``; further arguments are those of NumPy's function of the same name.
"""

from __future__ import annotations

import io
import os
import tempfile
from typing import Any

from hopsml import hdfs
from hopsml.hdfs.files import AnyPath

__all__ = [
    "fromfile",
    "fromregex",
    "genfromtxt",
    "load",
    "loadtxt",
    "memmap",
    "save",
    "savez",
    "savez_compressed",
]


def load(hdfs_filename: AnyPath, *args: Any, **kwds: Any) -> Any:
    """Read a file of the project with ``numpy.load``."""
    return _read("load", hdfs_filename, *args, **kwds)


def loadtxt(hdfs_filename: AnyPath, *args: Any, **kwds: Any) -> Any:
    """Read a file of the project with ``numpy.loadtxt``."""
    return _read("loadtxt", hdfs_filename, *args, **kwds)


def genfromtxt(hdfs_filename: AnyPath, *args: Any, **kwds: Any) -> Any:
    """Read a file of the project with ``numpy.genfromtxt``."""
    return _read("genfromtxt", hdfs_filename, *args, **kwds)


def fromregex(hdfs_filename: AnyPath, *args: Any, **kwds: Any) -> Any:
    """Read a file of the project with ``numpy.fromregex``."""
    return _read("fromregex", hdfs_filename, *args, **kwds)


def fromfile(hdfs_filename: AnyPath, *args: Any, **kwds: Any) -> Any:
    """Read a file of the project with ``numpy.fromfile``."""
    return _on_disk("fromfile", hdfs_filename, *args, **kwds)


def memmap(hdfs_filename: AnyPath, *args: Any, **kwds: Any) -> Any:
    """Return ``numpy.memmap`` of a temporary local copy, which is removed with the array.

    Changes do not reach the project.
    """
    return _on_disk("memmap", hdfs_filename, *args, **kwds)


def save(hdfs_filename: AnyPath, data: Any) -> None:
    """Write an array to the project with ``numpy.save``; an existing file is replaced."""
    _write("save", hdfs_filename, data)


def savez(hdfs_filename: AnyPath, *args: Any, **kwds: Any) -> None:
    """Write arrays to the project with ``numpy.savez``; an existing file is replaced."""
    _write("savez", hdfs_filename, *args, **kwds)


def savez_compressed(hdfs_filename: AnyPath, *args: Any, **kwds: Any) -> None:
    """Write arrays to the project with ``numpy.savez_compressed``; an existing file is replaced."""
    _write("savez_compressed", hdfs_filename, *args, **kwds)


def _read(name: str, path: AnyPath, *args: Any, **kwds: Any) -> Any:
    """Read a file through memory with NumPy's function of this name."""
    import numpy

    return getattr(numpy, name)(io.BytesIO(hdfs.load(path)), *args, **kwds)


def _on_disk(name: str, path: AnyPath, *args: Any, **kwds: Any) -> Any:
    """Read a file through a local copy, for functions that need a file descriptor.

    A mapping outlives the file's name.
    """
    import numpy

    with tempfile.TemporaryDirectory(prefix="hopsml-numpy-") as folder:
        return getattr(numpy, name)(hdfs.copy_to_local(path, folder), *args, **kwds)


def _write(name: str, path: AnyPath, *args: Any, **kwds: Any) -> None:
    """Write a file through a buffer, with the suffix that NumPy adds to a file's name but not to an open file."""
    import numpy

    buffer = io.BytesIO()
    getattr(numpy, name)(buffer, *args, **kwds)
    text, ending = os.fsdecode(path), ".npy" if name == "save" else ".npz"
    hdfs.dump(buffer.getvalue(), text if text.endswith(ending) else text + ending)


def __dir__() -> list[str]:
    return list(__all__)
