"""``hopsml.report``: values from inside the training function to the driver, the metrics file and the display."""

from __future__ import annotations

from typing import Any

from hopsml.cluster.worker.context import current
from hopsml.errors import ArgumentTypeError


def report(step: int | None = None, **values: Any) -> None:
    """Tell the driver where the training stands: ``hopsml.report(step=100, loss=0.3)``.

    Any rank may report; the chief's values are shown and written to ``metrics.jsonl``. Numbers, numpy scalars and
    one-element tensors are taken as numbers, anything else as text. Outside a worker it does nothing, so that the same
    function runs alone.

    Raises ArgumentTypeError (a TypeError) for a ``step`` that is no whole number.
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
    """Whether it is a whole number, be it of numpy or of a framework."""
    try:
        return bool(int(step) == step)
    except (TypeError, ValueError):
        return False
