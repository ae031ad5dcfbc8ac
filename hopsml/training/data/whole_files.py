"""Source of whole files on any store as rows, for instance images; successive files of about 16 MB form a shard."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hopsml.storage import urls
from hopsml.training.data import stored_files
from hopsml.training.data.stored_files import Paths, StoredFile

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SHARD_BYTES, _SHARD_FILES = 16 << 20, 4096
_AT_ONCE = 4  # files; the number of helper processes that are retained for reuse (hopsml/storage/remote/pool.py)
_OF_A_ROW = 200  # approximate bytes of a row in addition to the file's content


class WholeFiles:
    """Source of shards of whole files; it lists the files when it is created."""

    def __init__(self, given: Paths, suffixes: Sequence[str] | None, is_cached: bool) -> None:
        """List the files; arguments and errors are those of ``hopsml.data.files``."""
        endings = None if suffixes is None else tuple(one.lower() for one in suffixes)
        what = "file" if endings is None else f"file with a name that ends so (*{', *'.join(endings)})"
        found = stored_files.found(
            given, lambda name: endings is None or name.lower().endswith(endings), what, is_cached
        )
        self._groups = [found[begin:end] for begin, end in grouped([file.length for file in found])]

    @property
    def shard_sizes(self) -> tuple[int, ...]:
        """Number of rows of each shard."""
        return tuple(map(len, self._groups))

    @property
    def row_bytes(self) -> float:
        """Average memory that a row takes, in bytes."""
        return sum(file.length for group in self._groups for file in group) / max(1, sum(self.shard_sizes)) + _OF_A_ROW

    def read(self, shard: int) -> dict[str, NDArray[Any]]:
        """Return one shard's columns, which are read-only. Raises StorageError for a file that cannot be read."""
        import numpy as np

        group = self._groups[shard]
        with concurrent.futures.ThreadPoolExecutor(_AT_ONCE, "hopsml-files") as readers:
            contents = list(readers.map(StoredFile.whole, group))
        paths = [file.url for file in group]
        folders = [urls.name(urls.parent(path)) for path in paths]
        found = {"path": paths, "folder": folders, "content": contents}
        columns = {name: np.empty(len(group), object) for name in found}
        for name, values in found.items():
            columns[name][:] = values
        return columns


def grouped(
    sizes: Sequence[int], most_bytes: int = _SHARD_BYTES, most_files: int = _SHARD_FILES
) -> list[tuple[int, int]]:
    """Divide successive files into groups of at most so many bytes and files; a larger file forms a group alone.

    Returns ranges (begin, end) of indices.

    Args:
        sizes: bytes of each file.
        most_bytes: bytes of a group.
        most_files: files of a group.
    """
    groups, begin, size = list[tuple[int, int]](), 0, 0
    for number, more in enumerate(sizes):
        if number > begin and (size + more > most_bytes or number - begin == most_files):
            groups.append((begin, number))
            begin, size = number, 0
        size += more
    return [*groups, (begin, len(sizes))] if sizes else []
