"""A view as HTML: one self-contained fragment without style sheet, script or image; see ``style``.

Nothing from a run reaches the page unescaped.
"""

from __future__ import annotations

from collections.abc import Sequence

from hopsml.notebook import curve, style
from hopsml.notebook.view import NUMBERS, Cell, CurveView, StageView, Table, View
from hopsml.states import State

CURVE_PX = (240, 44)
SMALL_CURVE_PX = (96, 18)  # in a cell of a table


def render(view: View) -> str:
    """The HTML of a view, one ``div``."""
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


def _stages(stages: Sequence[StageView]) -> str:
    names = [
        style.span(
            "white-space:nowrap;" + ("" if stage.active else style.MUTED),
            f"{style.text(stage.name)} {style.duration(stage.seconds)}",
        )
        for stage in stages
    ]
    arrow = style.span("opacity:0.4", "&rarr;")
    return style.div(style.SMALL, style.row(arrow.join(names), style.GAP[1])) if names else ""


def _cause(text: str, state: str) -> str:
    """Why it ended so: in the state's colour where it failed, plain where it was cancelled; nothing for an empty text."""
    if not text:
        return ""
    colour = f"color:{style.tone(state)};font-weight:500;" if state == State.FAILED else ""
    return style.div(f"{colour}white-space:pre-wrap;overflow-wrap:anywhere", style.text(text))


def _curves(views: Sequence[CurveView]) -> str:
    """Each metric in a field of its own: its name and newest value, the line, its lowest and highest value."""
    if not views:
        return ""
    width, height = CURVE_PX
    fields = ""
    for view in views:
        label = f"{view.name}: lowest {view.low}, highest {view.high}, last {view.last}"
        last = style.span(f"margin-left:auto;{style.STRONG}", style.text(view.last))
        extremes = style.span("", f"min {style.text(view.low)}") + style.span(
            "margin-left:auto", f"max {style.text(view.high)}"
        )
        fields += style.div(
            "flex:1 1 200px;min-width:0;max-width:360px",
            style.row(style.span(f"{style.MUTED};overflow-wrap:anywhere", style.text(view.name)) + last, style.GAP[1])
            + curve.svg(view.points, width, height, label, stretched=True)
            + style.div(f"{style.SMALL};{style.MUTED};margin-top:{style.GAP[0]}", style.row(extremes, style.GAP[1])),
        )
    return style.div(f"display:flex;flex-wrap:wrap;gap:{style.GAP[1]} {style.GAP[3]}", fields)


def _table(table: Table) -> str:
    if not table.rows:
        return ""
    columns = [style.Column(name, name in NUMBERS) for name in table.columns]
    more = style.div(style.MUTED, style.text(table.more)) if table.more else ""
    return style.table(columns, [[_cell(cell) for cell in row] for row in table.rows]) + more


def _cell(cell: Cell) -> style.Cell:
    line = curve.svg(cell.points, *SMALL_CURVE_PX, cell.label)
    place = f"display:inline-block;width:{SMALL_CURVE_PX[0]}px;vertical-align:middle;margin-right:{style.GAP[1]}"
    colour = style.tone(cell.state) if cell.state else ""
    return style.Cell(cell.text, colour, style.span(place, line) if line else "")
