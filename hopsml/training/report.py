"""``hopsml.report``: values from inside the training function to the driver, the metrics file and the display."""

from __future__ import annotations

from typing import Any

from hopsml.cluster.context import current


def report(step: int | None = None, **values: Any) -> None:
    """Tell the driver where the training stands: ``hopsml.report(step=100, loss=0.3)``.

    Any rank may report; the chief's values are shown and written to ``metrics.jsonl``. Numbers, numpy scalars and
    one-element tensors are taken as numbers, anything else as text. Outside a worker it does nothing, so that the same
    function runs alone.
    """
    context = current()
    if context is not None:
        context.send({"kind": "report", "step": step, "metrics": values})
