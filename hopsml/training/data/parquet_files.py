"""Source that reads Parquet files on any store; each row group is one shard."""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hopsml.errors import ArgumentError, HopsmlError, StorageError
from hopsml.training.data import columns as arrow_columns
from hopsml.training.data import stored_files
from hopsml.training.data.stored_files import Paths, StoredFile

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

_SUFFIXES = (".parquet", ".parq", ".pq")


@dataclass(frozen=True)
class RowGroup:
    """One row group of a Parquet file; ``number`` counts within the file, ``description`` is the file's metadata."""

    file: StoredFile
    number: int
    rows: int
    size: int  # uncompressed bytes of the columns that are read
    description: Any

    @property
    def origin(self) -> str:
        """Origin of the group's rows, for messages."""
        return f"{self.file.url}, row group {self.number},"

    def values_per_row(self, column: int) -> float | None:
        """Return the length of a column's lists; None if the metadata do not show it, as with nulls and empty lists."""
        described = self.description.row_group(self.number).column(column)
        told = described.statistics
        if told is None or not told.has_null_count or told.null_count:
            return None
        return float(described.num_values / self.rows)


class ParquetFiles:
    """Source of shards in Parquet files; it reads the files' metadata when it is created, and rows on request."""

    def __init__(
        self,
        given: Paths,
        columns: Sequence[str] | None,
        fill: Mapping[str, Any] | None,
        is_cached: bool = False,
    ) -> None:
        """Find the files and check that their columns are compatible.

        Args:
            given: files, or folders of files, by URL.
            columns: names of the columns to read; None: all.
            fill: value that replaces nulls, by column.
            is_cached: whether to read through the local cache.

        Raises:
            PathNotFound: a path does not exist.
            ArgumentError: there is no Parquet file; or a column is not the same in all files: absent in one, of a type
                that makes different arrays, or with lists of another length.
        """
        self._columns, self._fill = None if columns is None else list(columns), dict(fill or {})
        what = f"Parquet file (*{', *'.join(_SUFFIXES)})"
        found = stored_files.find_files(given, lambda name: name.endswith(_SUFFIXES), what, is_cached)
        with concurrent.futures.ThreadPoolExecutor(stored_files.AT_ONCE, "hopsml-parquet") as readers:
            descriptions = list(readers.map(_description, found))
        self._groups = [
            RowGroup(file, number, group.num_rows, self._size(group), whole)
            for file, whole in zip(found, descriptions, strict=True)
            for number, group in enumerate(map(whole.row_group, range(whole.num_row_groups)))
        ]
        types = {
            file.url: self._types_of(whole.schema.to_arrow_schema(), file.url)
            for file, whole in zip(found, descriptions, strict=True)
        }
        self._check_fill(types)
        filled = {group.file.url for group in self._groups if group.rows}
        self._types = arrow_columns.common_types(
            {url: of_file for url, of_file in types.items() if url in filled}, self._fill
        )
        self._compared = self._check_lengths()
        self._first: arrow_columns.Forms | None = None  # of the columns in _compared

    def __repr__(self) -> str:
        return stored_files.describe_files(group.file for group in self._groups)

    def _types_of(self, schema: pa.Schema, url: str) -> arrow_columns.Types:
        """Return the types of a file's columns that are read; null for a filled column that the file lacks."""
        import pyarrow as pa

        there = set(schema.names)
        absent = [name for name in self._columns or () if name not in there]
        if missing := sorted(set(absent) - set(self._fill)):
            folders = [part for part in url.split("/")[:-1] if part.partition("=")[0] in missing]
            raise ArgumentError(
                f"{url} has no column {', '.join(missing)}; its columns are {', '.join(sorted(there))}"
                + f"; names of folders ({', '.join(folders)}) are not columns" * bool(folders)
            )
        read = [field for field in schema if self._columns is None or field.name in self._columns]
        types = list(arrow_columns.flatten_fields(read))
        if twice := sorted(name for name, count in Counter(name for name, _ in types).items() if count > 1):
            raise ArgumentError(f"{url} has several columns with the name {', '.join(twice)}; rename them")
        return {**dict(types), **{name: pa.null() for name in absent}}

    def _check_fill(self, types: Mapping[str, arrow_columns.Types]) -> None:
        """Raise ArgumentError if ``fill`` has a value for a column that no file has."""
        there = {name for of_file in types.values() for name in of_file}
        there |= {name for group in self._groups for name in group.description.schema.to_arrow_schema().names}
        if unknown := sorted(name for name in self._fill if not {name, name.partition(".")[0]} & there):
            raise ArgumentError(
                f"fill= has the column {', '.join(unknown)}, which {next(iter(types))} does not have; its columns "
                f"are {', '.join(sorted(there))}"
            )

    def _check_lengths(self) -> list[str]:
        """Raise ArgumentError if a column's lists differ in length between row groups, as the metadata show it.

        No row is read. Without this check each worker might see lists of one length that differs from the next
        worker's.

        Returns the columns with several axes whose shape the metadata do not show in full.
        """
        lists = {name for name, kind in self._types.items() if arrow_columns.is_list(kind)}
        compared = {name for name in lists if not arrow_columns.is_list_of_values(self._types[name])}
        compared |= {name for name, kind in self._types.items() if arrow_columns.is_vector(kind)}
        filled = [group for group in self._groups if group.rows]
        places = {group.file.url: _places_of(lists, group.description) for group in filled} if lists else {}
        seen: dict[str, tuple[float, str]] = {}
        for group in filled if lists else ():
            compared |= lists - set(places[group.file.url])
            for name, place in places[group.file.url].items():
                if (length := group.values_per_row(place)) is None:
                    compared.add(name)
                    continue
                here = group.origin.rstrip(",")
                first, there = seen.setdefault(name, (length, here))
                if first != length:
                    raise ArgumentError(
                        f"column '{name}' has {first:g} value(s) per row in {there}, but {length:g} in {here}, and "
                        "all lists of a batch must have the same length; pad or cut them before, or drop the column"
                    )
        return sorted(compared)

    @property
    def shard_sizes(self) -> tuple[int, ...]:
        """Number of rows of each shard."""
        return tuple(group.rows for group in self._groups)

    @property
    def row_bytes(self) -> float:
        """Average uncompressed bytes of the columns read of a row, according to the files' metadata."""
        return sum(group.size for group in self._groups) / max(1, sum(self.shard_sizes))

    def read(self, shard: int) -> dict[str, NDArray[Any]]:
        """Return one shard's columns, which are read-only.

        Raises:
            ArgumentError: a column has no array, or its rows have another shape than those of the first file; the
                message names the column.
            StorageError: a file, which the message names, cannot be read.
        """
        group = self._groups[shard]
        with _opened(group.file, group.description) as file:
            table = file.read_row_group(group.number, columns=self._columns, use_threads=False)
        found = self._arrays(table, group, self._types)
        if self._compared:
            some = {name: found[name] for name in self._compared}
            arrow_columns.check_row_forms(some, self._of_first(), group.origin)
        return found

    def _arrays(self, table: pa.Table, group: RowGroup, names: Iterable[str]) -> dict[str, NDArray[Any]]:
        """Return the columns ``names`` as arrays, in this order, including filled columns that the file lacks."""
        import pyarrow as pa

        told = [name for name in table.column_names if name in self._types or not pa.types.is_null(table[name].type)]
        found = arrow_columns.table_to_arrays(table.select(told), self._fill, group.origin, types=self._types)
        absent = pa.table({name: pa.nulls(table.num_rows) for name in names if name not in found})
        found |= arrow_columns.table_to_arrays(absent, self._fill, group.origin, types=self._types)
        return {name: found[name] for name in names}

    def _of_first(self) -> arrow_columns.Forms:
        """Return type and shape of the very first row, in the columns whose shape the metadata do not show."""
        import pyarrow as pa

        if self._first is None:
            group = next(group for group in self._groups if group.rows)
            names = {name for one in self._compared for name in (one, one.partition(".")[0])}
            with _opened(group.file, group.description) as file:
                there = [name for name in file.schema_arrow.names if name in names]
                row = next(file.iter_batches(1, row_groups=[group.number], columns=there, use_threads=False))
                table = pa.Table.from_batches([row])
            found = self._arrays(table, group, self._compared)
            self._first = arrow_columns.row_forms(found, f"the first row of {group.file.url}")
        return self._first

    def _size(self, group: Any) -> int:
        """Return the uncompressed bytes of a row group's columns that are read."""
        chunks = (group.column(number) for number in range(group.num_columns))
        wanted = None if self._columns is None else set(self._columns)
        read = (one for one in chunks if wanted is None or one.path_in_schema.partition(".")[0] in wanted)
        return sum(one.total_uncompressed_size for one in read)


def _places_of(lists: Collection[str], description: Any) -> dict[str, int]:
    """Return the indices of these lists among a file's leaf columns, by name.

    Lists that the file lacks are left out.
    """
    found = dict[str, int]()
    for place in range(description.num_columns):
        path = description.schema.column(place).path
        parents = (path[:at] for at, sign in enumerate(path) if sign == ".")
        if (name := next((one for one in parents if one in lists), None)) is not None:
            found[name] = place
    return found


def _description(file: StoredFile) -> Any:
    """Read a file's metadata."""
    with _opened(file) as opened:
        return opened.metadata


@contextlib.contextmanager
def _opened(file: StoredFile, description: Any = None) -> Iterator[Any]:
    """Open a Parquet file, reusing its metadata if they are given.

    Errors of pyarrow are raised as a StorageError with the URL.
    """
    import pyarrow as pa
    import pyarrow.parquet

    with file.open() as stream:
        try:
            yield pyarrow.parquet.ParquetFile(stream, metadata=description, pre_buffer=True)
        except HopsmlError:
            raise  # the store's error names the file already
        except (pa.ArrowException, OSError) as error:  # pyarrow reports a damaged page by an OSError
            raise StorageError(
                f"{file.url} is not a complete Parquet file, or was changed while it was read: {error}; write it again",
                file.url,
            ) from error
