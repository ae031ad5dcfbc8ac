"""Rendering of a view as one HTML fragment with inline SVG, without style sheets or scripts, and as plain text; pure.

All text from a run is escaped. ``style`` defines the appearance. Plain text is for front ends without HTML and for
readers of a notebook file.
"""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Iterator, Sequence

from hopsml.core.states import Lifecycle
from hopsml.notebook import style
from hopsml.notebook.run_timeline import Point, thinned
from hopsml.notebook.style import duration
from hopsml.notebook.view import NUMBERS, Cell, CurveView, Pairs, ProgressView, ResultView, StageView, Table, View
from hopsml.tracking.listing import format_table

BAR = 24  # characters of a progress bar
CURVE = 24  # characters of a learning curve
_BARS = "▁▂▃▄▅▆▇█"


def render_text(view: View) -> str:
    """Return a view as lines of text, without a line break at the end."""
    name = view.title if view.title == view.run_id else f"{view.title} ({view.run_id})"
    lines = [f"{name}: {view.state}, {duration(view.seconds)}"]
    lines += [" -> ".join(f"{one.name} {duration(one.seconds)}" for one in view.stages)] if view.stages else []
    lines += [view.cause] if view.cause else []
    lines += [f"waiting for {view.waits_for}"] if view.waits_for else []
    lines += [progress_text(view.progress)] if view.progress is not None else []
    lines += [*_pairs(view.numbers), *_pairs(view.best, "best: ")]
    lines += [curve_text(one) for one in view.curves]
    lines += _pairs(view.result, "result: ")
    if view.table.rows:
        lines += format_table([view.table.columns, *([_text_cell(cell) for cell in row] for row in view.table.rows)])
    lines += [view.table.more] if view.table.more else []
    lines += [f"note: {note}" for note in view.notes]
    if view.log:
        lines += [f"{view.log_title}:", *(f"  {line}" for line in view.log)]
    return "\n".join([*lines, f"run directory: {view.run_dir}"])


def _pairs(pairs: Pairs, label: str = "") -> list[str]:
    """Return names and values as one line, in a list; an empty list if there are none."""
    return [label + "  ".join(f"{name} {value}" for name, value in pairs)] if pairs else []


def _text_cell(cell: Cell) -> str:
    """Return a cell's text, after a sparkline of its curve."""
    return f"{sparkline([value for _, value in cell.points])} {cell.text}".lstrip() if cell.points else cell.text


def progress_text(view: ProgressView) -> str:
    """Return a progress bar and its facts in one line."""
    done = round(view.share * BAR)
    return f"[{'#' * done}{'.' * (BAR - done)}] {', '.join(view.facts)}"


def curve_text(view: CurveView) -> str:
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


CURVE_PX = (240, 44)
SMALL_CURVE_PX = (96, 18)  # in a table cell
MARGIN_PX = 3.0  # for the line width and the dot at the end of the line
DRAWN = 160  # most points that are drawn


def render(view: View) -> str:
    """Return a view as HTML, in one ``div``."""
    parts = [
        style.heading(view.title, view.state, style.duration(view.seconds), view.run_id) + _stages(view.stages),
        _cause(view.cause, view.state),
        style.labelled("waiting for", view.waits_for),
        style.bar(view.progress.share, view.state, view.progress.facts) if view.progress is not None else "",
        style.numbers(view.numbers),
        style.numbers(view.best, "best"),
        _curves(view.curves),
        style.numbers(view.result, "result"),
        _table(view.table),
        "".join(style.div("", style.labelled("note", note)) for note in view.notes),
        style.pre(view.log_title, view.log),
        style.div(style.SMALL, style.labelled("run directory", view.run_dir, style.MONO)),
    ]
    return style.frame(parts, view.state)


SHOWN_PAIRS = 12  # rows of a table of names and values; the others are counted


def render_result(view: ResultView) -> str:
    """Return a result as HTML, in one ``div``: tables of values side by side, a table of rows, and paths."""
    tables = "".join(_values(heading, pairs) for heading, pairs in view.tables)
    took = "" if view.seconds is None else style.duration(view.seconds)
    links = "".join(
        style.div(
            "", style.span(f"{style.MUTED};display:inline-block;min-width:96px", style.escape_text(name)) + _link(url)
        )
        for name, url in view.paths
        if url
    )
    parts = [
        style.heading(view.title, view.state, took, view.run_id),
        style.div(f"display:flex;flex-wrap:wrap;gap:{style.GAP[1]} {style.GAP[3]}", tables) if tables else "",
        _table(view.rows),
        "".join(style.div("", style.labelled("note", note)) for note in view.notes),
        style.div(style.SMALL, links) if links else "",
    ]
    return style.frame(parts, view.state)


def _values(heading: str, pairs: Pairs) -> str:
    """Return a table of names and values under a heading; an empty string if there are none."""
    if not pairs:
        return ""
    rows = [[style.HtmlCell(name), style.HtmlCell(value)] for name, value in pairs[:SHOWN_PAIRS]]
    hidden = len(pairs) - SHOWN_PAIRS
    more = style.div(style.MUTED, f"{hidden} more") if hidden > 0 else ""
    return style.div("min-width:0", style.table([style.Column(heading), style.Column("", number=True)], rows) + more)


def _link(url: str) -> str:
    """Return a URL as text, which is a link if a browser can open it."""
    shown = style.span(f"{style.MONO};overflow-wrap:anywhere", style.escape_text(url))
    opens = url.startswith(("http://", "https://", "file://"))
    return f'<a href="{style.escape_text(url)}" style="color:inherit" target="_blank">{shown}</a>' if opens else shown


def _stages(stages: Sequence[StageView]) -> str:
    """Render the stages and their durations in a row."""
    names = [
        style.span(
            "white-space:nowrap;" + ("" if stage.active else style.MUTED),
            f"{style.escape_text(stage.name)} {style.duration(stage.seconds)}",
        )
        for stage in stages
    ]
    arrow = style.span("opacity:0.4", "&rarr;")
    return style.div(style.SMALL, style.row(arrow.join(names), style.GAP[1])) if names else ""


def _cause(text: str, state: str) -> str:
    """Return the reason of the run's end, in the state's colour if it failed; an empty string for an empty text."""
    if not text:
        return ""
    colour = f"color:{style.state_colour(state)};font-weight:500;" if state == Lifecycle.FAILED else ""
    return style.div(f"{colour}white-space:pre-wrap;overflow-wrap:anywhere", style.escape_text(text))


def _curves(views: Sequence[CurveView]) -> str:
    """Render each metric in a field: its name and newest value, the line, its lowest and highest value."""
    if not views:
        return ""
    width, height = CURVE_PX
    fields = ""
    for view in views:
        label = f"{view.name}: lowest {view.low}, highest {view.high}, last {view.last}"
        last = style.span(f"margin-left:auto;{style.STRONG}", style.escape_text(view.last))
        extremes = style.span("", f"min {style.escape_text(view.low)}") + style.span(
            "margin-left:auto", f"max {style.escape_text(view.high)}"
        )
        fields += style.div(
            "flex:1 1 200px;min-width:0;max-width:360px",
            style.row(
                style.span(f"{style.MUTED};overflow-wrap:anywhere", style.escape_text(view.name)) + last, style.GAP[1]
            )
            + svg(view.points, width, height, label, stretched=True)
            + style.div(f"{style.SMALL};{style.MUTED};margin-top:{style.GAP[0]}", style.row(extremes, style.GAP[1])),
        )
    return style.div(f"display:flex;flex-wrap:wrap;gap:{style.GAP[1]} {style.GAP[3]}", fields)


def _table(table: Table) -> str:
    """Render a table, followed by a summary of the rows that are not shown."""
    if not table.rows:
        return ""
    columns = [style.Column(name, name in NUMBERS) for name in table.columns]
    more = style.div(style.MUTED, style.escape_text(table.more)) if table.more else ""
    return style.table(columns, [[_cell(cell) for cell in row] for row in table.rows]) + more


def _cell(cell: Cell) -> style.HtmlCell:
    """Convert a cell, with its curve as SVG and the colour of its state."""
    line = svg(cell.points, *SMALL_CURVE_PX, cell.label)
    place = f"display:inline-block;width:{SMALL_CURVE_PX[0]}px;vertical-align:middle;margin-right:{style.GAP[1]}"
    colour = style.state_colour(cell.state) if cell.state else ""
    return style.HtmlCell(cell.text, colour, style.span(place, line) if line else "")


def svg(points: Sequence[Point], width_px: int, height_px: int, label: str, *, stretched: bool = False) -> str:
    """Draw a line through the points with a dot at the last one; an empty string for fewer than two finite values.

    The line has the colour of the surrounding text, for light and dark themes. The SVG contains no text: where a front
    end drops it, as JupyterLab does for an untrusted notebook, the numbers next to it remain.

    Args:
        points: pairs (x, y); a value that is not finite leaves a gap.
        width_px: width, or with ``stretched`` the width of the view box.
        height_px: height.
        label: description for screen readers.
        stretched: whether to use the whole available width.
    """
    finite = [(x, y) for x, y in points if math.isfinite(y)]
    if len(finite) < 2:
        return ""
    place = _Scale(finite, width_px, height_px)
    shown = points if len(points) <= DRAWN else thinned(points, DRAWN)
    line = "".join(f"M{' L'.join(place(*point) for point in piece)}" for piece in _pieces(shown))
    stroke = 'fill="none" stroke="currentColor" stroke-linecap="round" stroke-linejoin="round"'
    fixed = 'vector-effect="non-scaling-stroke"'
    size = (
        f'width="100%" height="{height_px}" preserveAspectRatio="none"'
        if stretched
        else (f'width="{width_px}" height="{height_px}"')
    )
    return (
        f'<svg viewBox="0 0 {width_px} {height_px}" {size} role="img" aria-label="{html.escape(label, quote=True)}" '
        f'style="display:block;overflow:visible;max-width:none;height:{height_px}px">'
        f'<path d="{place.floor}" {stroke} {fixed} stroke-width="1" opacity="0.25"></path>'
        f'<path d="{line}" {stroke} {fixed} stroke-width="1.5" opacity="0.85"></path>'
        f'<path d="M{place(*finite[-1])} l0.01 0" {stroke} {fixed} stroke-width="5"></path></svg>'
    )


class _Scale:
    """Mapping from values to pixels; a constant is drawn in the middle."""

    def __init__(self, points: Sequence[Point], width_px: int, height_px: int) -> None:
        self._left, right = points[0][0], points[-1][0]
        self._low, high = min(y for _, y in points), max(y for _, y in points)
        self._per_x = (width_px - 2 * MARGIN_PX) / ((right - self._left) or 1.0)
        self._span = high - self._low
        self._height = height_px - 2 * MARGIN_PX
        self.floor = f"M0 {height_px - 0.5} L{width_px} {height_px - 0.5}"

    def __call__(self, x: float, y: float) -> str:
        share = (y - self._low) / self._span if self._span else 0.5
        left = MARGIN_PX + (x - self._left) * self._per_x
        return f"{left:.1f} {MARGIN_PX + (1 - share) * self._height:.1f}"


def _pieces(points: Sequence[Point]) -> Iterator[list[Point]]:
    """Yield the sections without NaN and infinity, between which the curve has gaps."""
    for is_finite, piece in itertools.groupby(points, key=lambda point: math.isfinite(point[1])):
        if is_finite:
            found = list(piece)
            yield found if len(found) > 1 else found * 2
