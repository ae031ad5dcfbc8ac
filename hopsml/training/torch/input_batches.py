"""A data set's batches for PyTorch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from hopsml.training.data.batch_reader import Batch


def dataset(batches: Iterable[Batch]) -> torch.utils.data.IterableDataset[dict[str, Any]]:
    """Each batch as tensors of the very memory that it has; columns of objects stay arrays."""
    import torch

    class Batches(torch.utils.data.IterableDataset[dict[str, Any]]):
        def __iter__(self) -> Iterator[dict[str, Any]]:
            for batch in batches:
                yield {name: torch.from_numpy(one) if one.dtype.kind in "biuf" else one for name, one in batch.items()}

    return Batches()
