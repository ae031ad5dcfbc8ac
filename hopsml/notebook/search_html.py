"""A search's view as HTML; as a run's, see ``html``."""

from __future__ import annotations

from collections.abc import Sequence

from hopsml.notebook import curve, html, style
from hopsml.notebook.search_view import COLUMNS, SearchView, TrialRow
from hopsml.notebook.style import Cell, Column

CURVE_PX = (96, 18)
_NUMBERS = ("trial", "step", "value")


def render(view: SearchView) -> str:
    """The fragment."""
    parts = [
        style.heading(view.title, view.state, style.duration(view.seconds), view.run_id),
        html.cause(view.cause, view.state),
        style.labelled("waiting for", view.waits_for),
        style.bar(view.progress.share, view.state, view.progress.facts) if view.progress is not None else "",
        style.numbers(view.numbers),
        style.numbers(view.best, "best"),
        html.curves(view.improvements),
        _running(view.running),
        style.div(style.MUTED, style.text(view.more)) if view.more else "",
        "".join(style.div("", style.labelled("note", note)) for note in view.notes),
        html.directory(view.run_dir),
    ]
    return style.frame(parts, view.state)


def _running(rows: Sequence[TrialRow]) -> str:
    if not rows:
        return ""
    columns = [Column(name, name in _NUMBERS) for name in COLUMNS]
    curve_at = [name.startswith("curve") for name in COLUMNS]
    return style.table(
        columns,
        [
            [
                Cell(text, html=_drawn(row) if drawn else "")
                for text, drawn in zip(row.cells(row.extremes), curve_at, strict=True)
            ]
            for row in rows
        ],
    )


def _drawn(row: TrialRow) -> str:
    line = curve.svg(row.points, *CURVE_PX, f"trial {row.number}: {row.extremes}")
    return (
        style.span(
            f"display:inline-block;width:{CURVE_PX[0]}px;vertical-align:middle;margin-right:{style.GAP[1]}", line
        )
        if line
        else ""
    )
