"""Interface of the sources that a data set's rows are read from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from hopsml.training.data.shard_order import KnownShards, Shards

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Source(Protocol):
    """Interface of a source of shards, the units in which rows are read."""

    @property
    def shard_sizes(self) -> tuple[int, ...]:
        """Number of rows of each shard."""

    @property
    def row_bytes(self) -> float:
        """Approximate memory that a row takes, in bytes; the same in all processes."""

    def read(self, shard: int) -> dict[str, NDArray[Any]]:
        """Return one shard's columns, which are read-only."""


def shards_of(source: Source) -> Shards:
    """Return the shards of a source, from its ``arriving`` attribute if not all of them are known yet."""
    arriving: Shards | None = getattr(source, "arriving", None)
    return KnownShards(source.shard_sizes) if arriving is None else arriving
