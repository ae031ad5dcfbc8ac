"""Parquet files on any store as shards: one for each row group."""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hopsml.errors import ArgumentError, StorageError
from hopsml.storage import filesystem
from hopsml.training.data import columns as arrow_columns

if TYPE_CHECKING:
    from numpy.typing import NDArray

_AT_ONCE = 8  # files whose descriptions are read at the same time
_SUFFIXES = (".parquet", ".parq", ".pq")


@dataclass(frozen=True)
class RowGroup:
    """What is read as a whole: ``number`` counts within its file, whose description is kept."""

    url: str
    number: int
    rows: int
    size: int  # bytes of the columns that are read, not compressed
    description: Any


class ParquetFiles:
    """A source of shards; it reads the files' descriptions when it is made, all else when it is asked for."""

    def __init__(
        self, given: str | Sequence[str], columns: Sequence[str] | None, fill: Mapping[str, Any] | None
    ) -> None:
        """``given``: files, or folders of files, by URL.

        Raises PathNotFound for nothing there, ArgumentError for no Parquet file, or a column that a file lacks.
        """
        self._columns, self._fill = None if columns is None else list(columns), dict(fill or {})
        found = [file for one in ([given] if isinstance(given, str) else given) for file in _files(one)]
        with concurrent.futures.ThreadPoolExecutor(_AT_ONCE, "hopsml-parquet") as readers:
            self._groups = [group for groups in readers.map(self._groups_of, found) for group in groups]

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
        with _opened(group.url, group.description) as file:
            table = file.read_row_group(group.number, columns=self._columns, use_threads=False)
        return arrow_columns.arrays(table, self._fill, f"{group.url}, row group {group.number},")

    def _groups_of(self, url: str) -> list[RowGroup]:
        with _opened(url) as file:
            there = {field.name for field in file.schema_arrow}
            if missing := sorted(set(self._columns or ()) - there):
                raise ArgumentError(f"{url} has no column {', '.join(missing)}; there are {', '.join(sorted(there))}")
            whole = file.metadata
        groups = [whole.row_group(number) for number in range(whole.num_row_groups)]
        return [RowGroup(url, n, group.num_rows, self._size(group), whole) for n, group in enumerate(groups)]

    def _size(self, group: Any) -> int:
        chunks = (group.column(number) for number in range(group.num_columns))
        wanted = None if self._columns is None else set(self._columns)
        read = (one for one in chunks if wanted is None or one.path_in_schema.partition(".")[0] in wanted)
        return sum(one.total_uncompressed_size for one in read)


def _files(given: str) -> list[str]:
    """The files that a URL means, by name; what begins with _ or . is a writer's own."""
    if not filesystem.for_url(given).status(given).is_dir:
        return [given]
    below = [entry for entry in filesystem.walk(given) if not entry.is_dir]
    root = len(given.rstrip("/"))
    found = sorted(entry.url for entry in below if entry.name.endswith(_SUFFIXES) and not _is_hidden(entry.url[root:]))
    if not found:
        raise ArgumentError(f"{given} holds no Parquet file (*{', *'.join(_SUFFIXES)}) among its {len(below)} file(s)")
    return found


def _is_hidden(path: str) -> bool:
    return any(part.startswith(("_", ".")) for part in path.split("/"))


@contextlib.contextmanager
def _opened(url: str, description: Any = None) -> Iterator[Any]:
    """A Parquet file on its store; its description need not be read where it is known. What pyarrow says of it names it."""
    import pyarrow as pa
    import pyarrow.parquet

    with filesystem.for_url(url).open_read(url) as stream:
        try:
            yield pyarrow.parquet.ParquetFile(stream, metadata=description, pre_buffer=True)
        except (pa.ArrowInvalid, pa.ArrowException) as error:
            raise StorageError(
                f"{url} is no whole Parquet file, or was changed while it was read: {error}", url
            ) from error
