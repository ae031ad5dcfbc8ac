"""How long a task tolerates that a service does not answer, and what it logs about it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

LIMIT_S = 900.0  # with a ResourceManager or a store that does not answer


class Patience:
    """Tolerates a service that does not answer, for a limited time; logs when that begins and ends, not each time."""

    def __init__(self, say: Callable[..., Any], limit_s: float = LIMIT_S) -> None:
        """``say``: a logger's method, called with a format and its values."""
        self._say, self._limit_s = say, limit_s
        self._answered, self._away = time.monotonic(), False

    def answered(self) -> None:
        """Note that the service has answered."""
        now = time.monotonic()
        if self._away:
            self._say("it answers again, after %.0f s", now - self._answered)
        self._answered, self._away = now, False

    def away(self, error: Exception) -> None:
        """Note that the service did not answer; raises ``error`` once that has lasted for the whole limit."""
        if time.monotonic() - self._answered > self._limit_s:
            raise error
        if not self._away:
            self._say("%s; asking again, for up to %.0f s", error, self._limit_s)
        self._away = True
