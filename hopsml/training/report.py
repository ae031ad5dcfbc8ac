"""Reports of values and of progress from the training function to the driver (``hopsml.report``).

Values go to the driver, the metrics file and the display. The chief also sends its progress, a few times a second at
most.
"""

from __future__ import annotations

import time
from typing import Any

from hopsml.cluster.worker.context import current
from hopsml.errors import ArgumentTypeError

INTERVAL_S = 0.5


def report(step: int | None = None, **values: Any) -> None:
    """Report values of a training step to the driver: ``hopsml.report(step=100, loss=0.3)``.

    Any rank may report; the chief's values are shown and written to ``metrics.jsonl``. Outside a worker it does
    nothing, so that the same function runs alone.

    Args:
        step: step to which the values belong.
        **values: numbers, numpy scalars and one-element tensors are stored as numbers, anything else as text.

    Raises:
        ArgumentTypeError: (a TypeError) ``step`` is not an integer.
    """
    if step is not None and not _is_whole(step):
        raise ArgumentTypeError(
            f"hopsml.report({step!r:.80}): the step must be a whole number, and values go by name, for instance "
            "hopsml.report(step=3, loss=0.1)"
        )
    context = current()
    if context is not None:
        context.send({"kind": "report", "step": step, "metrics": values})


def _is_whole(step: Any) -> bool:
    """Return True for an integer, also one of numpy or of a framework."""
    try:
        return bool(int(step) == step)
    except (TypeError, ValueError):
        return False


class ProgressSender:
    """Sender of the chief's progress to the driver; it does nothing on other ranks and outside of a worker."""

    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        """Create a sender for this process.

        Args:
            interval_s: least seconds between two messages; the last step is sent in any case.
        """
        context = current()
        self._tell = context.progress if context is not None and context.is_chief else None
        self._interval_s, self._next = interval_s, 0.0

    def send_progress(self, done: int, total: int, unit: str = "step", *, at_once: bool = False) -> None:
        """Send ``done`` of ``total`` units to the driver; ignored if the total is unknown.

        Args:
            done: units done so far.
            total: units in all; less than 1 if unknown.
            unit: name of the unit.
            at_once: ignore the interval between messages.
        """
        if self._tell is None or total < 1:
            return
        now = time.monotonic()
        if at_once or now >= self._next or done >= total:
            self._next = now + self._interval_s
            self._tell(done, total, unit)
