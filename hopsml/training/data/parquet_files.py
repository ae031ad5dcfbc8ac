"""Parquet files on any store as shards: one for each row group."""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hopsml.errors import ArgumentError, HopsmlError, StorageError
from hopsml.training.data import columns as arrow_columns
from hopsml.training.data import stored_files
from hopsml.training.data.stored_files import Paths, StoredFile

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SUFFIXES = (".parquet", ".parq", ".pq")


@dataclass(frozen=True)
class RowGroup:
    """What is read as a whole: ``number`` counts within its file, whose description is kept."""

    file: StoredFile
    number: int
    rows: int
    size: int  # bytes of the columns that are read, not compressed
    description: Any

    def values_a_row(self, column: int) -> float | None:
        """How long a column's lists are; None where that is not described, as with nulls and empty lists among them."""
        described = self.description.row_group(self.number).column(column)
        told = described.statistics
        if not self.rows or told is None or not told.has_null_count or told.null_count:
            return None
        return float(described.num_values / self.rows)


class ParquetFiles:
    """A source of shards; it reads the files' descriptions when it is made, all else when it is asked for."""

    def __init__(
        self,
        given: Paths,
        columns: Sequence[str] | None,
        fill: Mapping[str, Any] | None,
        is_cached: bool = False,
    ) -> None:
        """``given``: files, or folders of files, by URL. ``is_cached``: read by way of the local cache.

        Raises PathNotFound for nothing there, ArgumentError for no Parquet file, a column that a file lacks, one of numbers
        that is of another type in another file, or one of lists that have another length there.
        """
        self._columns, self._fill = None if columns is None else list(columns), dict(fill or {})
        what = f"Parquet file (*{', *'.join(_SUFFIXES)})"
        found = stored_files.found(given, lambda name: name.endswith(_SUFFIXES), what, is_cached)
        with concurrent.futures.ThreadPoolExecutor(stored_files.AT_ONCE, "hopsml-parquet") as readers:
            self._groups = [group for groups in readers.map(self._groups_of, found) for group in groups]
        self._check_types()
        self._check_lengths()

    def _check_types(self) -> None:
        """Raise ArgumentError where numbers are of one type in one file and of another in the next."""
        import pyarrow as pa

        seen: dict[str, tuple[Any, str]] = {}
        files = {group.file.url: group.description for group in self._groups}
        for url, description in files.items():
            for field in description.schema.to_arrow_schema():
                if not pa.types.is_primitive(field.type) or (self._columns and field.name not in self._columns):
                    continue  # others may differ and make the same arrays, as text and dictionaries of text do
                kind, first = seen.setdefault(field.name, (field.type, url))
                if kind != field.type:
                    raise ArgumentError(
                        f"column '{field.name}' is {kind} in {first} and {field.type} in {url}: a batch needs all alike; "
                        "write the data anew with one schema"
                    )

    def _check_lengths(self) -> None:
        """Raise ArgumentError where lists have another length in one row group than in another, as the files describe it.

        No row is read for that. Else each worker might have lists that are alike, and other ones than the next worker.
        """
        files = {group.file.url: group.description for group in self._groups}
        lists = {url: self._lists_of(description) for url, description in files.items()}
        seen: dict[str, tuple[float, str]] = {}
        for group in self._groups:
            for place, path in lists[group.file.url].items():
                if (length := group.values_a_row(place)) is None:
                    continue
                here = f"{group.file.url}, row group {group.number}"
                first, there = seen.setdefault(path, (length, here))
                if first != length:
                    name = path.partition(".")[0]
                    raise ArgumentError(
                        f"column '{name}' has {first:g} value(s) a row in {there}, and {length:g} in {here}: a batch needs "
                        "lists that are all alike; pad or cut them before, or leave the column out"
                    )

    def _lists_of(self, description: Any) -> dict[int, str]:
        """The columns of lists that are read: where they are in the file, and their paths, which begin with their names."""
        import pyarrow as pa

        kinds = description.schema.to_arrow_schema()
        lists = {field.name for field in kinds if pa.types.is_list(field.type) or pa.types.is_large_list(field.type)}
        wanted = lists if self._columns is None else lists & set(self._columns)
        paths = (description.schema.column(place).path for place in range(description.num_columns))
        return {place: path for place, path in enumerate(paths) if path.partition(".")[0] in wanted}

    @property
    def shards(self) -> tuple[int, ...]:
        """The rows of each."""
        return tuple(group.rows for group in self._groups)

    @property
    def row_bytes(self) -> float:
        """About how much memory a row takes, as the files describe it."""
        return sum(group.size for group in self._groups) / max(1, sum(self.shards))

    def read(self, shard: int) -> dict[str, NDArray[Any]]:
        """One shard's columns, not to be written to.

        Raises ArgumentError naming a column that has no array, StorageError naming a file that cannot be read.
        """
        group = self._groups[shard]
        with _opened(group.file, group.description) as file:
            table = file.read_row_group(group.number, columns=self._columns, use_threads=False)
        return arrow_columns.arrays(table, self._fill, f"{group.file.url}, row group {group.number},")

    def _groups_of(self, stored: StoredFile) -> list[RowGroup]:
        with _opened(stored) as file:
            names = file.schema_arrow.names
            there = set(names)
            if missing := sorted(set(self._columns or ()) - there):
                raise ArgumentError(
                    f"{stored.url} has no column {', '.join(missing)}; there are {', '.join(sorted(there))}"
                )
            if twice := sorted(name for name, count in Counter(names).items() if count > 1):
                raise ArgumentError(
                    f"{stored.url} has several columns called {', '.join(twice)}, of which a batch takes one; rename them"
                )
            if unknown := sorted(name for name in self._fill if not {name, name.partition(".")[0]} & there):
                raise ArgumentError(
                    f"fill= names {', '.join(unknown)}, and {stored.url} has no such column; there are "
                    f"{', '.join(sorted(there))}"
                )
            whole = file.metadata
        groups = [whole.row_group(number) for number in range(whole.num_row_groups)]
        return [RowGroup(stored, n, group.num_rows, self._size(group), whole) for n, group in enumerate(groups)]

    def _size(self, group: Any) -> int:
        chunks = (group.column(number) for number in range(group.num_columns))
        wanted = None if self._columns is None else set(self._columns)
        read = (one for one in chunks if wanted is None or one.path_in_schema.partition(".")[0] in wanted)
        return sum(one.total_uncompressed_size for one in read)


@contextlib.contextmanager
def _opened(file: StoredFile, description: Any = None) -> Iterator[Any]:
    """A Parquet file on its store; its description need not be read where it is known. What pyarrow says of it names it."""
    import pyarrow as pa
    import pyarrow.parquet

    with file.opened() as stream:
        try:
            yield pyarrow.parquet.ParquetFile(stream, metadata=description, pre_buffer=True)
        except HopsmlError:
            raise  # the store's, which names the file by itself
        except (pa.ArrowException, OSError) as error:  # of a damaged page pyarrow says it by an OSError
            raise StorageError(
                f"{file.url} is no whole Parquet file, or was changed while it was read: {error}", file.url
            ) from error
