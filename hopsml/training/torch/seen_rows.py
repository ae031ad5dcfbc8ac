"""Count of the passes over a data set, shared by the training and all DataLoader processes made for it.

A DataLoader does not inform its data set when a pass begins: it creates new processes, each with a copy of the data
set, or lets the previous ones iterate their copies again. The count is therefore in memory shared by all of them, and
whoever begins a pass updates it.
"""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing.context
import multiprocessing.reduction
import os
import weakref
from collections.abc import Iterator
from typing import Any

import msgspec

_MOST_OPEN = 64  # limit of passes that not all processes have begun; passes that were left early remain open


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

    def lacks(self, process: LoaderProcess) -> bool:
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


def begin(passes: Passes, process: LoaderProcess | None) -> tuple[Passes, int]:
    """Assign a pass to a process that begins one; return the new count and the pass's number; pure.

    Args:
        passes: the present count.
        process: the loader process; None for the training process itself.
    """
    number, others = passes.begun, list(passes.open)
    if process is None:
        return Passes(number + 1, passes.open), number
    mine = next((one for one in others if one.lacks(process)), None)
    if mine is None:
        mine = PartlyBegunPass(process.seed, process.lap, process.count, number, ())
    else:
        others.remove(mine)
    came = (*mine.came, process.number)
    still_open = [msgspec.structs.replace(mine, came=came)] if len(came) < process.count else []
    begun = max(passes.begun, mine.number + 1)
    return Passes(begun, tuple([*still_open, *others][:_MOST_OPEN])), mine.number


_decode = msgspec.json.Decoder(Passes).decode


class SeenRows:
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

    def begin(self, process: LoaderProcess | None) -> int:
        """Count a new pass and return its number."""
        with self._locked() as file:
            passes, number = begin(_read(file), process)
            # Trailing spaces are ignored, so the content is valid whenever a process is killed, without a separate
            # truncation.
            os.pwrite(file, msgspec.json.encode(passes).ljust(os.fstat(file).st_size), 0)
        return number

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        """Yield a descriptor with its own lock: a lock on the shared descriptor would be held by all processes."""
        file = os.open(f"/proc/self/fd/{self._descriptor}", os.O_RDWR)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # a process that is forked at this moment has the descriptor, too
            os.close(file)

    def __reduce__(self) -> tuple[Any, ...]:
        if multiprocessing.context.get_spawning_popen() is None:
            with self._locked() as file:
                return SeenRows, (_read(file).begun,)
        return _opened, (multiprocessing.reduction.DupFd(self._descriptor),)


def _read(file: int) -> Passes:
    """Return the passes stored in a file."""
    return _decode(os.pread(file, os.fstat(file).st_size, 0))


def _opened(shared: Any) -> SeenRows:
    """Return a book for a descriptor that another process has sent."""
    book = SeenRows.__new__(SeenRows)
    book._hold(shared.detach())
    return book
