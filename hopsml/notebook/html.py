"""A view as HTML: one self-contained fragment without style sheet, script or image.

Every style stands in its element and every colour is inherited, half transparent, or readable on white and on black:
what JupyterLab's sanitizer leaves of an untrusted notebook, the classic notebook and VS Code then look alike, in light
and in dark themes. Nothing from a run reaches the page unescaped.
"""

from __future__ import annotations

import html
import itertools
from collections.abc import Iterable, Sequence

from hopsml.notebook.view import RunView, StageView, WorkerRow

_TONES = {
    "starting": "#b7791f",
    "running": "#3b82c4",
    "closing": "#3b82c4",
    "finished": "#2f9e5f",
    "failed": "#d64545",
    "cancelled": "#8a8f98",
}
_ROW_TONES = {"failed": "#d64545", "lost": "#d64545", "finished": "#2f9e5f", "running": "#3b82c4"}
_LINE = "1px solid rgba(128,128,128,0.3)"
_MUTED = "opacity:0.65"
_MONO = "font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:12px;line-height:1.45"
_CELL = "text-align:left;padding:2px 14px 2px 0;border:0;background:transparent;white-space:nowrap;font-size:13px"


def render(view: RunView) -> str:
    """The fragment."""
    parts = [
        _head(view),
        _stages(view.stages),
        line("waiting for", view.waits_for),
        numbers(view.progress + view.metrics),
        numbers(view.result, "result"),
        _workers(view.workers, view.workers_left),
        *(line("note", note) for note in view.notes),
        cause(view.cause),
        _log(view.log_title, view.log),
        line("run directory", view.run_dir, _MONO + ";overflow-wrap:anywhere"),
    ]
    return frame("".join(parts), _TONES[view.state])


def frame(content: str, tone: str) -> str:
    """The box around everything, with a coloured edge."""
    style = (
        f"border:{_LINE};border-left:3px solid {tone};border-radius:4px;padding:10px 14px;margin:4px 0;"
        "max-width:760px;font-family:system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;font-size:13px;line-height:1.5"
    )
    return f'<div style="{style}">{content}</div>'


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], tones: Sequence[str] = (), toned: int = -1) -> str:
    """A plain table; ``tones`` colour the cell ``toned`` of each row, "" for none."""
    head = "".join(f'<th style="{_CELL};font-weight:500;{_MUTED}">{_text(name)}</th>' for name in columns)
    body = ""
    for row, tone in itertools.zip_longest(rows, tones, fillvalue=""):
        colours = [f";color:{tone}" if tone and index == toned else "" for index in range(len(row))]
        cells = [f'<td style="{_CELL}{colour}">{_text(cell)}</td>' for cell, colour in zip(row, colours, strict=True)]
        body += f'<tr style="background:transparent">{"".join(cells)}</tr>'
    style = "border-collapse:collapse;border:0;margin:6px 0 2px 0;font-variant-numeric:tabular-nums"
    return (
        f'<div style="overflow-x:auto"><table style="{style}"><thead><tr style="background:transparent">{head}</tr>'
        f"</thead><tbody>{body}</tbody></table></div>"
    )


def _head(view: RunView) -> str:
    return heading(view.title, view.state, _TONES[view.state], view.seconds, view.run_id)


def heading(title: str, state: str, tone: str, seconds: float, run_id: str = "") -> str:
    """The first line: what it is, and how it stands."""
    name = f'<span style="{_MUTED}">{_text(run_id)}</span>' if run_id and title != run_id else ""
    return (
        '<div style="display:flex;flex-wrap:wrap;gap:2px 10px;align-items:baseline">'
        f'<span style="font-weight:600;font-size:14px">{_text(title)}</span>{name}'
        f'<span style="margin-left:auto;font-variant-numeric:tabular-nums">'
        f'<span style="color:{tone};font-weight:600">{_text(state)}</span> '
        f'<span style="{_MUTED}">{duration(seconds)}</span></span></div>'
    )


def _stages(stages: Sequence[StageView]) -> str:
    if not stages:
        return ""
    names = [
        f'<span style="white-space:nowrap;{"font-weight:600" if stage.active else _MUTED}">'
        f"{_text(stage.name)} {duration(stage.seconds)}</span>"
        for stage in stages
    ]
    arrow = '<span style="opacity:0.4">&rarr;</span>'
    return (
        '<div style="display:flex;flex-wrap:wrap;gap:0 8px;margin-top:2px;font-variant-numeric:tabular-nums">'
        f"{arrow.join(names)}</div>"
    )


def line(label: str, text: str, style: str = "") -> str:
    """A label and a text; nothing for an empty text."""
    if not text:
        return ""
    return (
        f'<div style="margin-top:4px"><span style="{_MUTED}">{_text(label)}</span> '
        f'<span style="{style}">{_text(text)}</span></div>'
    )


def numbers(pairs: Sequence[tuple[str, str]], label: str = "") -> str:
    """Names and values in one line; nothing for none."""
    if not pairs:
        return ""
    cells = [
        f'<span style="white-space:nowrap"><span style="{_MUTED}">{_text(name)}</span> '
        f'<span style="font-weight:600">{_text(value)}</span></span>'
        for name, value in pairs
    ]
    head = f'<span style="{_MUTED}">{_text(label)}</span>' if label else ""
    style = "display:flex;flex-wrap:wrap;gap:0 18px;margin-top:6px;font-variant-numeric:tabular-nums"
    return f'<div style="{style}">{head}{"".join(cells)}</div>'


def _workers(rows: Sequence[WorkerRow], left: str) -> str:
    if not rows:
        return ""
    columns = ("rank", "host", "executor", "GPUs", "state", "step")
    cells = [(row.rank, row.host, row.executor, row.gpus, row.state, row.step) for row in rows]
    more = f'<div style="{_MUTED}">{_text(left)}</div>' if left else ""
    return table(columns, cells, [_ROW_TONES.get(row.state, "") for row in rows], columns.index("state")) + more


def cause(text: str) -> str:
    """Why it failed; nothing for an empty text."""
    if not text:
        return ""
    style = "margin-top:8px;color:#d64545;font-weight:500;white-space:pre-wrap;overflow-wrap:anywhere"
    return f'<div style="{style}">{_text(text)}</div>'


def _log(title: str, lines: Sequence[str]) -> str:
    if not lines:
        return ""
    style = (
        f"{_MONO};margin:2px 0 0 0;padding:6px 8px;background:rgba(128,128,128,0.1);border-radius:3px;"
        "white-space:pre-wrap;overflow-wrap:anywhere"
    )
    text = _text("\n".join(lines))
    return f'<div style="margin-top:8px;{_MUTED}">{_text(title)}</div><pre style="{style}">{text}</pre>'


def duration(seconds: float) -> str:
    """A duration, at most a few characters: 8.3 s, 4 min 10 s, 2 h 05 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def _text(text: str) -> str:
    return html.escape(text, quote=True)
