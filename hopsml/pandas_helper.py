"""Pandas tables in the project, under the predecessor's names: ``pandas_helper.read_csv("Resources/x.csv")``.

Paths are those of ``hopsml.hdfs``; further arguments are those of pandas' function or method of the same name. They are
best given by name; by position, ``read_csv(path, ";")``, they are taken in the order of pandas' documentation.
"""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable
from typing import Any

from hopsml import hdfs
from hopsml.errors import ArgumentTypeError
from hopsml.hdfs.files import AnyPath

__all__ = [
    "read_csv",
    "read_excel",
    "read_json",
    "read_parquet",
    "write_csv",
    "write_json",
    "write_parquet",
]


def read_csv(hdfs_filename: AnyPath, *args: Any, **kwds: Any) -> Any:
    """Read a file of the project with ``pandas.read_csv``."""
    return _read("read_csv", hdfs_filename, args, kwds)


def read_parquet(hdfs_filename: AnyPath, *args: Any, **kwds: Any) -> Any:
    """Read a file of the project with ``pandas.read_parquet``."""
    return _read("read_parquet", hdfs_filename, args, kwds)


def read_json(hdfs_filename: AnyPath, *args: Any, **kwds: Any) -> Any:
    """Read a file of the project with ``pandas.read_json``."""
    return _read("read_json", hdfs_filename, args, kwds)


def read_excel(hdfs_filename: AnyPath, *args: Any, **kwds: Any) -> Any:
    """Read a file of the project with ``pandas.read_excel``, which needs openpyxl."""
    return _read("read_excel", hdfs_filename, args, kwds)


def write_csv(hdfs_filename: AnyPath, dataframe: Any, *args: Any, **kwds: Any) -> None:
    """Write a table to the project with ``DataFrame.to_csv``; an existing file is replaced."""
    hdfs.dump(dataframe.to_csv(**_by_name(dataframe.to_csv, args, kwds)), hdfs_filename)


def write_parquet(hdfs_filename: AnyPath, dataframe: Any, *args: Any, **kwds: Any) -> None:
    """Write a table to the project with ``DataFrame.to_parquet``; an existing file is replaced."""
    buffer = io.BytesIO()
    dataframe.to_parquet(buffer, **_by_name(dataframe.to_parquet, args, kwds))
    hdfs.dump(buffer.getvalue(), hdfs_filename)


def write_json(hdfs_filename: AnyPath, dataframe: Any, *args: Any, **kwds: Any) -> None:
    """Write a table to the project with ``DataFrame.to_json``; an existing file is replaced."""
    hdfs.dump(dataframe.to_json(**_by_name(dataframe.to_json, args, kwds)), hdfs_filename)


def _read(name: str, path: AnyPath, args: tuple[Any, ...], kwds: dict[str, Any]) -> Any:
    """Read a file through memory with pandas' function of this name."""
    import pandas

    function = getattr(pandas, name)
    return function(io.BytesIO(hdfs.load(path)), **_by_name(function, args, kwds))


def _by_name(function: Callable[..., Any], args: tuple[Any, ...], kwds: dict[str, Any]) -> dict[str, Any]:
    """Return positional arguments of pandas' function by name: it accepts only the file by position.

    Raises:
        ArgumentTypeError: There are too many, or one is given twice.
    """
    if not args:
        return kwds
    name = function.__name__
    names = [each for each, one in inspect.signature(function).parameters.items() if one.kind is not one.VAR_KEYWORD]
    names = [each for each in names if each not in ("self", "path_or_buf", "path")][
        0 if name.startswith("to_") else 1 :
    ]
    given = dict(zip(names, args, strict=False))
    if len(args) > len(names) or (twice := sorted(given.keys() & kwds.keys())):
        what = f"'{twice[0]}' twice" if len(args) <= len(names) else f"{len(args)} arguments"
        raise ArgumentTypeError(f"pandas' {name}() was given {what} behind the file; give its arguments by name")
    return {**given, **kwds}


def __dir__() -> list[str]:
    return list(__all__)
