"""Batches of a data set for PyTorch, in the training's process or in processes of its DataLoader.

A DataLoader does not inform its data set when a pass begins: it creates new processes, each with a copy of the data
set, or lets the previous ones iterate their copies again. The count of passes is therefore in memory shared by all of
them, and whoever begins a pass updates it.
"""

from __future__ import annotations

import functools
import itertools
import os
import weakref
from collections.abc import Iterable, Iterator
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import DupFd
from typing import TYPE_CHECKING, Any

import msgspec

from hopsml.core import file_locks
from hopsml.training import collective
from hopsml.training.data.batch_reader import strided_batches

if TYPE_CHECKING:
    import torch

    from hopsml.training.data.batch_reader import BatchedRows


_MOST_OPEN = 64  # limit of passes that not all processes have begun; passes that were left early remain open
Place = tuple[int, int]  # rank of the training's worker, and number of training workers
_place_at_fork: Place = (0, 1)


class LoaderProcess(msgspec.Struct, frozen=True):
    """DataLoader process that begins a pass."""

    seed: int  # drawn by the loader, the same for all of its processes
    lap: int  # number of passes that this process has begun before
    number: int
    count: int  # number of processes of the loader


class PartlyBegunPass(msgspec.Struct, frozen=True):
    """Pass that some of its processes have begun and others have not yet."""

    seed: int
    lap: int
    count: int
    number: int
    came: tuple[int, ...]

    def awaits(self, process: LoaderProcess) -> bool:
        """Return True if the pass waits for this process.

        A process that has begun this pass already, as happens when the user sets the same seed again, belongs to
        another pass.
        """
        alike = (self.seed, self.lap, self.count) == (process.seed, process.lap, process.count)
        return alike and process.number not in self.came


class Passes(msgspec.Struct, frozen=True):
    """Number of passes that have begun, and the open ones, newest first."""

    begun: int = 0
    open: tuple[PartlyBegunPass, ...] = ()


def assign_pass(passes: Passes, process: LoaderProcess | None) -> tuple[Passes, int]:
    """Assign a pass to a process that begins one; return the new count and the pass's number; pure.

    Args:
        passes: the present count.
        process: the loader process; None for the training process itself.
    """
    number, others = passes.begun, list(passes.open)
    if process is None:
        return Passes(number + 1, passes.open), number
    mine = next((one for one in others if one.awaits(process)), None)
    if mine is None:
        mine = PartlyBegunPass(process.seed, process.lap, process.count, number, ())
    else:
        others.remove(mine)
    came = (*mine.came, process.number)
    still_open = [msgspec.structs.replace(mine, came=came)] if len(came) < process.count else []
    begun = max(passes.begun, mine.number + 1)
    return Passes(begun, tuple([*still_open, *others][:_MOST_OPEN])), mine.number


_decode = msgspec.json.Decoder(Passes).decode


class SharedPasses:
    """Shared-memory store of the ``Passes`` of one data set.

    A forked process shares it, and so does a process to which it is sent when that is started. Any other copy counts
    separately.
    """

    def __init__(self, begun: int = 0) -> None:
        self._hold(os.memfd_create("hopsml-passes"))
        os.write(self._descriptor, msgspec.json.encode(Passes(begun)))

    def _hold(self, descriptor: int) -> None:
        """Own a descriptor, which is closed with this object."""
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)

    def begin_pass(self, process: LoaderProcess | None) -> int:
        """Return the number of the pass that this process begins; of several loader processes the first counts it."""
        with file_locks.locked(self._path) as file:
            passes, number = assign_pass(_read(file), process)
            # Trailing spaces are ignored, so the content is valid whenever a process is killed, without a separate
            # truncation.
            os.pwrite(file, msgspec.json.encode(passes).ljust(os.fstat(file).st_size), 0)
        return number

    @property
    def _path(self) -> str:
        """Path for opening it anew: a lock on the shared descriptor would be held by all processes."""
        return f"/proc/self/fd/{self._descriptor}"

    def __reduce__(self) -> tuple[Any, ...]:
        if get_spawning_popen() is None:
            with file_locks.locked(self._path) as file:
                return SharedPasses, (_read(file).begun,)
        return _opened, (DupFd(self._descriptor),)


def _read(file: int) -> Passes:
    """Return the passes stored in a file."""
    return _decode(os.pread(file, os.fstat(file).st_size, 0))


def _opened(shared: Any) -> SharedPasses:
    """Return a book for a descriptor that another process has sent."""
    book = SharedPasses.__new__(SharedPasses)
    book._hold(shared.detach())
    return book


def dataset(
    batches: BatchedRows, book: SharedPasses | None = None, place: Place | None = None
) -> torch.utils.data.IterableDataset[dict[str, Any]]:
    """Return a torch data set that yields each batch as tensors sharing its memory; columns of objects stay arrays.

    ``Dataset.torch`` describes the result.

    Args:
        batches: the batches.
        book: shared count of passes, if this is a copy of another data set.
        place: rank and number of workers, if this process is not a worker itself.
    """
    import torch

    passes, laps = book or SharedPasses(), itertools.count()
    _note_places()

    class Batches(torch.utils.data.IterableDataset[dict[str, Any]]):
        def __iter__(self) -> Iterator[dict[str, Any]]:
            process = torch.utils.data.get_worker_info()
            if process is None:
                return _tensors(batches.batches(passes.begin_pass(None) * batches.epochs))
            here = LoaderProcess(process.seed - process.id, next(laps), process.id, process.num_workers)
            return _tensors(_of_process(batches, passes.begin_pass(here), here, place or _place_at_fork))

        def __len__(self) -> int:
            return len(batches)

        def __reduce__(self) -> tuple[Any, ...]:
            is_sent = get_spawning_popen() is not None
            return dataset, (batches, passes, collective.rank_and_size() if is_sent else None)

    return Batches()


def _of_process(batches: BatchedRows, number: int, process: LoaderProcess, place: Place) -> Iterator[dict[str, Any]]:
    """Yield one loader process's share of pass ``number``; the loader takes batches of its processes cyclically."""
    sampler = batches.sampler(number * batches.epochs)
    sampler.join(*place)
    yield from strided_batches(batches.source, sampler, process.number, process.count)


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
    _place_at_fork = collective.rank_and_size()
