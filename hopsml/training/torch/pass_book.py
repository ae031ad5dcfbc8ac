"""How often a data set has been iterated, known to the training and to all processes that DataLoaders make for it.

A loader tells its data set nothing when a pass begins: it makes new processes, each with a copy, or lets the ones of before
iterate their copies once more. So the count lies in memory that all of them share, and who begins a pass writes there.
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

_MOST_OPEN = 64  # passes of which not all processes have come; those that were left early stay so


class LoaderProcess(msgspec.Struct, frozen=True):
    """One of a loader's processes that begins a pass."""

    seed: int  # the loader draws one for all of its processes
    lap: int  # how many passes this very process has begun before
    number: int
    count: int  # of all of them


class OpenPass(msgspec.Struct, frozen=True):
    """A pass that some of its processes have begun, and others not yet."""

    seed: int
    lap: int
    count: int
    number: int
    came: tuple[int, ...]

    def lacks(self, process: LoaderProcess) -> bool:
        """Whether it waits for this one. Who comes twice, as where the user sets the seed anew, comes for another pass."""
        alike = (self.seed, self.lap, self.count) == (process.seed, process.lap, process.count)
        return alike and process.number not in self.came


class Passes(msgspec.Struct, frozen=True):
    """How many have begun, and the open ones, the newest first."""

    begun: int = 0
    open: tuple[OpenPass, ...] = ()


def begin(passes: Passes, process: LoaderProcess | None) -> tuple[Passes, int]:
    """Who begins a pass, a loader's process or (None) the training itself, gets the pass's number; pure."""
    number, others = passes.begun, list(passes.open)
    if process is None:
        return Passes(number + 1, passes.open), number
    mine = next((one for one in others if one.lacks(process)), None)
    if mine is None:
        mine = OpenPass(process.seed, process.lap, process.count, number, ())
    else:
        others.remove(mine)
    came = (*mine.came, process.number)
    still_open = [msgspec.structs.replace(mine, came=came)] if len(came) < process.count else []
    begun = max(passes.begun, mine.number + 1)
    return Passes(begun, tuple([*still_open, *others][:_MOST_OPEN])), mine.number


_decode = msgspec.json.Decoder(Passes).decode


class PassBook:
    """The ``Passes`` of one data set in shared memory; a forked process has the same, and so has one that it is sent to
    when that is started. Any other copy counts for itself.
    """

    def __init__(self, begun: int = 0) -> None:
        self._hold(os.memfd_create("hopsml-passes"))
        os.write(self._descriptor, msgspec.json.encode(Passes(begun)))

    def _hold(self, descriptor: int) -> None:
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)

    def begin(self, process: LoaderProcess | None) -> int:
        """The number of the pass that begins."""
        with self._locked() as file:
            passes, number = begin(_read(file), process)
            # Spaces behind it mean nothing: so it is whole whenever a process ends, without another step.
            os.pwrite(file, msgspec.json.encode(passes).ljust(os.fstat(file).st_size), 0)
        return number

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        """A descriptor with a lock of its own: the one that processes have in common would lock for all of them."""
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
                return PassBook, (_read(file).begun,)
        return _opened, (multiprocessing.reduction.DupFd(self._descriptor),)


def _read(file: int) -> Passes:
    return _decode(os.pread(file, os.fstat(file).st_size, 0))


def _opened(shared: Any) -> PassBook:
    book = PassBook.__new__(PassBook)
    book._hold(shared.detach())
    return book
