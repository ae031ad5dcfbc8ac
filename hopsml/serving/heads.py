"""Connections on which no request comes about: uvicorn waits for ever for the end of a request's head.

Whoever sends a byte now and then, or nothing at all, would hold a descriptor of a replica without a token.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

KEEP_ALIVE_S = 75.0  # longer than usual balancers keep a connection that nobody uses


class HeadWatch:
    """Closes connections of uvicorn's whose next request has not begun within ``KEEP_ALIVE_S``."""

    def __init__(self) -> None:
        self._waiting: dict[Any, tuple[Any, float]] = {}  # connection -> its last request, and since when it is that

    def look(self, connections: Iterable[Any], now: float) -> None:
        """``now``: monotonic seconds. A request that is under way is bounded by its own deadline."""
        before, self._waiting = self._waiting, {}
        for one in set(connections):
            if one.cycle is not None and not one.cycle.response_complete:
                continue
            last, since = before.get(one, (one.cycle, now))
            if last is not one.cycle:  # another request came and went
                since = now
            if now - since >= KEEP_ALIVE_S:
                one.transport.close()
            else:
                self._waiting[one] = (one.cycle, since)
