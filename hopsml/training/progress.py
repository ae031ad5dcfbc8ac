"""Progress of a training, sent to the driver by the chief a few times a second at most."""

from __future__ import annotations

import time

from hopsml.cluster.worker.context import current

INTERVAL_S = 0.5


class ProgressSender:
    """Sends the chief's progress to the driver; silent on other ranks and outside of a worker."""

    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        """``interval_s``: least seconds between two messages; the last step is sent in any case."""
        context = current()
        self._tell = context.progress if context is not None and context.is_chief else None
        self._interval_s, self._next = interval_s, 0.0

    def tell(self, done: int, total: int, unit: str = "step", *, at_once: bool = False) -> None:
        """Report ``done`` of ``total`` units; ignored where the total is unknown. ``at_once``: ignore the interval."""
        if self._tell is None or total < 1:
            return
        now = time.monotonic()
        if at_once or now >= self._next or done >= total:
            self._next = now + self._interval_s
            self._tell(done, total, unit)
