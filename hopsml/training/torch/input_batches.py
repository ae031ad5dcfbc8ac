"""A data set's batches for PyTorch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hopsml.errors import ArgumentError

if TYPE_CHECKING:
    import torch

    from hopsml.training.data.batch_reader import BatchedRows


def dataset(batches: BatchedRows) -> torch.utils.data.IterableDataset[dict[str, Any]]:
    """Each batch as tensors of the very memory that it has; columns of objects stay arrays. See ``Dataset.torch``."""
    import torch

    iterations = itertools.count()

    class Batches(torch.utils.data.IterableDataset[dict[str, Any]]):
        def __iter__(self) -> Iterator[dict[str, Any]]:
            _check_process()
            for batch in batches.batches(next(iterations) * batches.epochs):
                yield {name: torch.from_numpy(one) if one.dtype.kind in "biuf" else one for name, one in batch.items()}

        def __len__(self) -> int:
            return len(batches)

    return Batches()


def _check_process() -> None:
    """Raises ArgumentError in a process of a DataLoader's: each would read all of this worker's rows, in the first order."""
    import torch

    if (process := torch.utils.data.get_worker_info()) is not None:
        raise ArgumentError(
            f"DataLoader(..., num_workers={process.num_workers}): each of these processes would read all of this worker's "
            "rows, so they would come several times; leave it at num_workers=0: a thread reads ahead by itself. What is "
            "done to a batch, decoding for instance, goes by threads in the loop"
        )
