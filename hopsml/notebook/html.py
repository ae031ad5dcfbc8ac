"""A run's view as HTML: one self-contained fragment without style sheet, script or image; see ``style``.

Nothing from a run reaches the page unescaped.
"""

from __future__ import annotations

from collections.abc import Sequence

from hopsml.notebook import curve, style
from hopsml.notebook.style import Cell, Column
from hopsml.notebook.view import NUMBERS, CurveView, RunView, StageView, WorkerRow, columns_of
from hopsml.states import State

CURVE_PX = (240, 44)


def render(view: RunView) -> str:
    """The fragment."""
    parts = [
        style.heading(view.title, view.state, style.duration(view.seconds), view.run_id) + _stages(view.stages),
        cause(view.cause, view.state),
        style.labelled("waiting for", view.waits_for),
        style.bar(view.progress.share, view.state, view.progress.facts) if view.progress is not None else "",
        style.numbers(view.steps + view.metrics),
        curves(view.curves),
        style.numbers(view.result, "result"),
        _workers(view.workers, view.workers_left),
        "".join(style.div("", style.labelled("note", note)) for note in view.notes),
        style.pre(view.log_title, view.log),
        directory(view.run_dir),
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


def cause(text: str, state: str) -> str:
    """Why it ended so: in the state's colour where it failed, plain where it was cancelled; nothing for an empty text."""
    if not text:
        return ""
    colour = f"color:{style.tone(state)};font-weight:500;" if state == State.FAILED else ""
    return style.div(f"{colour}white-space:pre-wrap;overflow-wrap:anywhere", style.text(text))


def curves(views: Sequence[CurveView]) -> str:
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


def _workers(rows: Sequence[WorkerRow], left: str) -> str:
    if not rows:
        return ""
    names = columns_of(rows)
    cells = [
        [Cell(row.cells().get(name) or "–", style.tone(row.state) if name == "state" else "") for name in names]
        for row in rows
    ]
    more = style.div(style.MUTED, style.text(left)) if left else ""
    return style.table([Column(name, name in NUMBERS) for name in names], cells) + more


def directory(url: str) -> str:
    """Where the files lie."""
    return style.div(style.SMALL, style.labelled("run directory", url, style.MONO))
