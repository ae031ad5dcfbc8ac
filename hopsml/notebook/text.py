"""A view as plain text: for front ends that show no HTML, and for who reads a notebook's file."""

from __future__ import annotations

from collections.abc import Sequence

from hopsml.notebook.style import duration
from hopsml.notebook.view import CurveView, ProgressView, RunView, columns_of
from hopsml.tracking.listing import table

BAR = 24  # characters
CURVE = 24  # characters of a learning curve
_BARS = "▁▂▃▄▅▆▇█"


def render(view: RunView) -> str:
    """Some lines, without a line break at the end."""
    name = view.title if view.title == view.run_id else f"{view.title} ({view.run_id})"
    lines = [f"{name}: {view.state}, {duration(view.seconds)}"]
    if view.stages:
        lines.append(" -> ".join(f"{stage.name} {duration(stage.seconds)}" for stage in view.stages))
    lines += [view.cause] if view.cause else []
    if view.waits_for:
        lines.append(f"waiting for {view.waits_for}")
    lines += [bar(view.progress)] if view.progress is not None else []
    for label, pairs in (("", view.steps + view.metrics), ("result: ", view.result)):
        if pairs:
            lines.append(label + "  ".join(f"{key} {value}" for key, value in pairs))
        lines += [curve(one) for one in view.curves] if not label else []
    if view.workers:
        names = columns_of(view.workers)
        rows = [[row.cells().get(name) or "–" for name in names] for row in view.workers]
        lines += table([names, *rows])
    lines += [view.workers_left] if view.workers_left else []
    lines += [f"note: {note}" for note in view.notes]
    if view.log:
        lines += [f"{view.log_title}:", *(f"  {line}" for line in view.log)]
    return "\n".join([*lines, f"run directory: {view.run_dir}"])


def bar(view: ProgressView) -> str:
    """How much is done, in one line."""
    done = round(view.share * BAR)
    return f"[{'#' * done}{'.' * (BAR - done)}] {', '.join(view.facts)}"


def curve(view: CurveView) -> str:
    """A metric in one line: its newest value, its course, between which values."""
    return f"{view.name} {view.last}  {sparkline([value for _, value in view.points])} {view.low} … {view.high}"


def sparkline(values: Sequence[float]) -> str:
    """The values as bars, the newest on the right; empty for fewer than two finite ones."""
    values = [value for value in values if abs(value) < float("inf")]
    if len(values) < 2:
        return ""
    step = max(1.0, len(values) / CURVE)
    shown = [values[min(len(values) - 1, int((index + 1) * step) - 1)] for index in range(min(CURVE, len(values)))]
    low, high = min(shown), max(shown)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[int((value - low) * scale)] for value in shown)
