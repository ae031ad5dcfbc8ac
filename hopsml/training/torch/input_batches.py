"""Batches of a data set for PyTorch, in the training's process or in processes of its DataLoader."""

from __future__ import annotations

import functools
import itertools
import multiprocessing.context
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from hopsml.training import collective
from hopsml.training.data.batch_reader import batches_of_turn
from hopsml.training.torch.seen_rows import LoaderProcess, SeenRows

if TYPE_CHECKING:
    import torch

    from hopsml.training.data.batch_reader import BatchedRows

Place = tuple[int, int]  # rank of the training's worker, and number of training workers
_place_at_fork: Place = (0, 1)


def dataset(
    batches: BatchedRows, book: SeenRows | None = None, place: Place | None = None
) -> torch.utils.data.IterableDataset[dict[str, Any]]:
    """Return a torch data set that yields each batch as tensors sharing its memory; columns of objects stay arrays.

    ``Dataset.torch`` describes the result.

    Args:
        batches: the batches.
        book: shared count of passes, if this is a copy of another data set.
        place: rank and number of workers, if this process is not a worker itself.
    """
    import torch

    passes, laps = book or SeenRows(), itertools.count()
    _note_places()

    class Batches(torch.utils.data.IterableDataset[dict[str, Any]]):
        def __iter__(self) -> Iterator[dict[str, Any]]:
            process = torch.utils.data.get_worker_info()
            if process is None:
                return _tensors(batches.batches(passes.begin(None) * batches.epochs))
            here = LoaderProcess(process.seed - process.id, next(laps), process.id, process.num_workers)
            return _tensors(_of_process(batches, passes.begin(here), here, place or _place_at_fork))

        def __len__(self) -> int:
            return len(batches)

        def __reduce__(self) -> tuple[Any, ...]:
            is_sent = multiprocessing.context.get_spawning_popen() is not None
            return dataset, (batches, passes, collective.place() if is_sent else None)

    return Batches()


def _of_process(batches: BatchedRows, number: int, process: LoaderProcess, place: Place) -> Iterator[dict[str, Any]]:
    """Yield one loader process's share of pass ``number``; the loader takes batches of its processes cyclically."""
    sampler = batches.sampler(number * batches.epochs)
    sampler.join(*place)
    yield from batches_of_turn(batches.source, sampler, process.number, process.count)


def _tensors(batches: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield batches with their numeric columns as tensors."""
    import torch

    for batch in batches:
        yield {name: torch.from_numpy(one) if one.dtype.kind in "biuf" else one for name, one in batch.items()}


@functools.cache
def _note_places() -> None:
    """Record this worker's place before each fork, because a forked process cannot query the group."""
    os.register_at_fork(before=_note_place)


def _note_place() -> None:
    """Record the place of this worker."""
    global _place_at_fork
    _place_at_fork = collective.place()
