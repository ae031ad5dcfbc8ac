"""Rendering of a view as plain text, for front ends without HTML and for readers of a notebook file."""

from __future__ import annotations

from collections.abc import Sequence

from hopsml.notebook.style import duration
from hopsml.notebook.view import Cell, CurveView, Pairs, ProgressView, View
from hopsml.tracking.listing import table

BAR = 24  # characters of a progress bar
CURVE = 24  # characters of a learning curve
_BARS = "▁▂▃▄▅▆▇█"


def render(view: View) -> str:
    """Return a view as lines of text, without a line break at the end."""
    name = view.title if view.title == view.run_id else f"{view.title} ({view.run_id})"
    lines = [f"{name}: {view.state}, {duration(view.seconds)}"]
    lines += [" -> ".join(f"{one.name} {duration(one.seconds)}" for one in view.stages)] if view.stages else []
    lines += [view.cause] if view.cause else []
    lines += [f"waiting for {view.waits_for}"] if view.waits_for else []
    lines += [bar(view.progress)] if view.progress is not None else []
    lines += [*_pairs(view.numbers), *_pairs(view.best, "best: ")]
    lines += [curve(one) for one in view.curves]
    lines += _pairs(view.result, "result: ")
    if view.table.rows:
        lines += table([view.table.columns, *([_cell(cell) for cell in row] for row in view.table.rows)])
    lines += [view.table.more] if view.table.more else []
    lines += [f"note: {note}" for note in view.notes]
    if view.log:
        lines += [f"{view.log_title}:", *(f"  {line}" for line in view.log)]
    return "\n".join([*lines, f"run directory: {view.run_dir}"])


def _pairs(pairs: Pairs, label: str = "") -> list[str]:
    """Return names and values as one line, in a list; an empty list if there are none."""
    return [label + "  ".join(f"{name} {value}" for name, value in pairs)] if pairs else []


def _cell(cell: Cell) -> str:
    """Return a cell's text, after a sparkline of its curve."""
    return f"{sparkline([value for _, value in cell.points])} {cell.text}".lstrip() if cell.points else cell.text


def bar(view: ProgressView) -> str:
    """Return a progress bar and its facts in one line."""
    done = round(view.share * BAR)
    return f"[{'#' * done}{'.' * (BAR - done)}] {', '.join(view.facts)}"


def curve(view: CurveView) -> str:
    """Return a metric in one line: its newest value, a sparkline, its range."""
    return f"{view.name} {view.last}  {sparkline([value for _, value in view.points])} {view.low} … {view.high}"


def sparkline(values: Sequence[float]) -> str:
    """Return values as bars, the newest on the right; an empty string for fewer than two finite values."""
    values = [value for value in values if abs(value) < float("inf")]
    if len(values) < 2:
        return ""
    step = max(1.0, len(values) / CURVE)
    shown = [values[min(len(values) - 1, int((index + 1) * step) - 1)] for index in range(min(CURVE, len(values)))]
    low, high = min(shown), max(shown)
    return "".join(_BARS[_bar(value, low, high)] for value in shown)


def _bar(value: float, low: float, high: float) -> int:
    """Return the index of the bar for a value.

    Halves are subtracted because the whole difference may overflow; near 0 it may be too small to divide by.
    """
    whole = high / 2 - low / 2
    share = (value / 2 - low / 2) / whole if whole > 0 else 0.0
    return int(min(max(share, 0.0), 1.0) * (len(_BARS) - 1))
