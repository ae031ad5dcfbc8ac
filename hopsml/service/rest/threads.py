"""Thread pools of a server, so that slow reads of some callers do not delay the authentication of others.

Starlette runs all blocking calls in one pool of 40 threads. Here authentication, the reading of files that are sent, and the
reading of what is followed have separate pools.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Final, ParamSpec, TypeVar

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

P = ParamSpec("P")
T = TypeVar("T")


class ThreadPool:
    """A limit of threads that run at once, in each event loop; calls beyond it wait in the order of their arrival."""

    def __init__(self, name: str, threads: int) -> None:
        self._limiter, self._threads = RunVar[anyio.CapacityLimiter](f"hopsml-{name}"), threads

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function in a thread of this pool."""
        return await anyio.to_thread.run_sync(lambda: function(*args, **kwargs), limiter=self._of_this_loop())

    def _of_this_loop(self) -> anyio.CapacityLimiter:
        """Return the limiter of the running event loop; it is created at the first call."""
        try:
            return self._limiter.get()
        except LookupError:
            made = anyio.CapacityLimiter(self._threads)
            self._limiter.set(made)
            return made

    async def iterate(self, pieces: Iterator[bytes]) -> AsyncGenerator[bytes, None]:
        """Yield the items of an iterator, each of which is read by a thread of this pool."""
        while (piece := await self.run(next, pieces, None)) is not None:
            yield piece


AUTHENTICATION: Final = ThreadPool("authentication", 8)  # by tokens, and the audit log
SIGN_IN: Final = ThreadPool("sign-in", 8)  # by a provider, which may be slow
DOWNLOADS: Final = ThreadPool("downloads", 8)  # each holds a thread for one piece, not while a slow client receives it
FOLLOWING: Final = ThreadPool("following", 8)  # feeds of event streams
