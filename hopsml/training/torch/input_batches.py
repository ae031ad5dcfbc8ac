"""A data set's batches for PyTorch, in the training's process or in processes of its DataLoader."""

from __future__ import annotations

import functools
import itertools
import multiprocessing.context
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from hopsml.training import collective
from hopsml.training.data.batch_reader import batches_of_turn
from hopsml.training.torch.pass_book import LoaderProcess, PassBook

if TYPE_CHECKING:
    import torch

    from hopsml.training.data.batch_reader import BatchedRows

Place = tuple[int, int]  # rank of the training's worker, and number of those that train
_place_at_fork: Place = (0, 1)


def dataset(
    batches: BatchedRows, book: PassBook | None = None, place: Place | None = None
) -> torch.utils.data.IterableDataset[dict[str, Any]]:
    """Each batch as tensors of the very memory that it has; columns of objects stay arrays. See ``Dataset.torch``.

    ``book``: of the data set that this is a copy of; ``place``: that of its worker, where this process is none.
    """
    import torch

    passes, laps = book or PassBook(), itertools.count()
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
    """A process's share of pass ``number``: the loader takes a batch of each process in turn."""
    sampler = batches.sampler(number * batches.epochs)
    sampler.join(*place)
    yield from batches_of_turn(batches.source, sampler, process.number, process.count)


def _tensors(batches: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    import torch

    for batch in batches:
        yield {name: torch.from_numpy(one) if one.dtype.kind in "biuf" else one for name, one in batch.items()}


@functools.cache
def _note_places() -> None:
    """From now on a forked process knows its worker's place: it has no threads of the group's, and must not ask it."""
    os.register_at_fork(before=_note_place)


def _note_place() -> None:
    global _place_at_fork
    _place_at_fork = collective.place()
