"""Pandas tables in the project, under the predecessor's names: ``pandas_helper.read_csv("Resources/x.csv")``.

Paths are those of ``hopsml.hdfs``; keyword arguments are those of pandas' function or method of the same name.
"""

from __future__ import annotations

import io
from typing import Any

from hopsml import hdfs
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


def read_csv(hdfs_filename: AnyPath, **kwds: Any) -> Any:
    """Read a file of the project with ``pandas.read_csv``."""
    return _read("read_csv", hdfs_filename, **kwds)


def read_parquet(hdfs_filename: AnyPath, **kwds: Any) -> Any:
    """Read a file of the project with ``pandas.read_parquet``."""
    return _read("read_parquet", hdfs_filename, **kwds)


def read_json(hdfs_filename: AnyPath, **kwds: Any) -> Any:
    """Read a file of the project with ``pandas.read_json``."""
    return _read("read_json", hdfs_filename, **kwds)


def read_excel(hdfs_filename: AnyPath, **kwds: Any) -> Any:
    """Read a file of the project with ``pandas.read_excel``, which needs openpyxl."""
    return _read("read_excel", hdfs_filename, **kwds)


def write_csv(hdfs_filename: AnyPath, dataframe: Any, **kwds: Any) -> None:
    """Write a table to the project with ``DataFrame.to_csv``; an existing file is replaced."""
    hdfs.dump(dataframe.to_csv(**kwds), hdfs_filename)


def write_parquet(hdfs_filename: AnyPath, dataframe: Any, **kwds: Any) -> None:
    """Write a table to the project with ``DataFrame.to_parquet``; an existing file is replaced."""
    buffer = io.BytesIO()
    dataframe.to_parquet(buffer, **kwds)
    hdfs.dump(buffer.getvalue(), hdfs_filename)


def write_json(hdfs_filename: AnyPath, dataframe: Any, **kwds: Any) -> None:
    """Write a table to the project with ``DataFrame.to_json``; an existing file is replaced."""
    hdfs.dump(dataframe.to_json(**kwds), hdfs_filename)


def _read(name: str, path: AnyPath, **kwds: Any) -> Any:
    """Read a file through memory with pandas' function of this name."""
    import pandas

    return getattr(pandas, name)(io.BytesIO(hdfs.load(path)), **kwds)


def __dir__() -> list[str]:
    return list(__all__)
