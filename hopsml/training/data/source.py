"""Where the rows of a data set come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from hopsml.training.data.shard_order import KnownShards, Shards

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Source(Protocol):
    """Where shards come from."""

    @property
    def shards(self) -> tuple[int, ...]:
        """The rows of each."""

    @property
    def row_bytes(self) -> float:
        """About how much memory a row takes; the same wherever it is asked."""

    def read(self, shard: int) -> dict[str, NDArray[Any]]:
        """One shard's columns, not to be written to."""


def shards_of(source: Source) -> Shards:
    """The shards of a source; one that does not know all of them yet has ``arriving``, those that come."""
    arriving: Shards | None = getattr(source, "arriving", None)
    return KnownShards(source.shards) if arriving is None else arriving
