"""How everything of ours looks in a notebook: one scale of type, one of distances, colour for state alone; pure.

Every style stands in its element, and every colour but that of a state is the page's own, in part transparent: the same in
light and in dark themes, and in what JupyterLab's sanitizer leaves of a notebook that is not trusted.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hopsml.states import Lifecycle

TITLE, BODY, SMALL = (
    "font-size:15px;line-height:20px",
    "font-size:13px;line-height:20px",
    "font-size:12px;line-height:16px",
)
GAP = ("4px", "8px", "12px", "16px")  # no other distance
LINE = "1px solid rgba(128,128,128,0.3)"
FILL = "rgba(128,128,128,0.12)"
MUTED = "opacity:0.65"
STRONG = "font-weight:600"
NUMBERS = "font-variant-numeric:tabular-nums"
SANS = "font-family:system-ui,-apple-system,'Segoe UI',Roboto,sans-serif"
MONO = f"font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;{SMALL}"
WIDTH_PX = 760

# Each stands out from white as from black, 4.3 to 1.
_GREY = "#727983"
_TONES = {
    Lifecycle.WAITING: "#aa690e",
    Lifecycle.STARTING: "#aa690e",
    Lifecycle.RUNNING: "#2d7ad2",
    Lifecycle.CLOSING: "#2d7ad2",
    Lifecycle.FINISHED: "#238b57",
    Lifecycle.FAILED: "#de3b35",
    Lifecycle.LOST: "#de3b35",
}


def tone(state: str) -> str:
    """The colour of a state; grey for one that is nobody's fault, or that is not known."""
    return _TONES.get(Lifecycle(state), _GREY) if state in Lifecycle.__members__ else _GREY


def text(value: str) -> str:
    """A text as it may stand in HTML, in attributes too."""
    return html.escape(value, quote=True)


def div(style: str, content: str) -> str:
    """A block; ``content`` is HTML."""
    return f'<div style="{style}">{content}</div>'


def span(style: str, content: str) -> str:
    """A piece of a line; ``content`` is HTML."""
    return f'<span style="{style}">{content}</span>'


def row(content: str, between: str = GAP[3]) -> str:
    """Pieces beside each other, on further lines where there is no room."""
    return div(f"display:flex;flex-wrap:wrap;gap:0 {between};align-items:baseline;{NUMBERS}", content)


def frame(parts: Iterable[str], state: str) -> str:
    """The box around everything, its edge in the colour of the state; empty parts take no room."""
    content = "".join(
        div(f"margin-top:{GAP[1]}" if number else "", part) for number, part in enumerate(filter(None, parts))
    )
    style = (
        f"border:{LINE};border-left:3px solid {tone(state)};border-radius:4px;padding:{GAP[2]} {GAP[3]};"
        f"margin:{GAP[0]} 0;max-width:{WIDTH_PX}px;box-sizing:border-box;{SANS};{BODY}"
    )
    return div(style, content)


def heading(title: str, state: str, took: str, run_id: str = "") -> str:
    """The first line: what it is, and how it stands."""
    name = span(f"{SMALL};{MUTED};overflow-wrap:anywhere", text(run_id)) if run_id and title != run_id else ""
    stands = span(f"color:{tone(state)};{STRONG}", text(state)) + f" {span(MUTED, text(took))}"
    return row(
        span(f"{TITLE};{STRONG};overflow-wrap:anywhere", text(title))
        + name
        + span(f"margin-left:auto;white-space:nowrap;{NUMBERS}", stands),
        GAP[1],
    )


def labelled(label: str, value: str, style: str = "") -> str:
    """A label and a text; nothing for an empty text."""
    if not value:
        return ""
    head = f"{span(MUTED, text(label))} " if label else ""
    return head + span(f"overflow-wrap:anywhere;{style}", text(value))


def numbers(pairs: Sequence[tuple[str, str]], label: str = "") -> str:
    """Names and values in one line; nothing for none."""
    if not pairs:
        return ""
    cells = [
        span("overflow-wrap:anywhere", f"{span(MUTED, text(name))} {span(STRONG, text(value))}")
        for name, value in pairs
    ]
    return row((span(MUTED, text(label)) if label else "") + "".join(cells))


def bar(share: float, state: str, facts: Sequence[str]) -> str:
    """How much is done, as a bar, and in words below it: the first one at its left, the others at its right."""
    percent = f"{100 * min(1.0, max(0.0, share)):.1f}%"
    done = div(f"width:{percent};height:6px;border-radius:3px;background:{tone(state)}", "")
    left, *others = facts
    words = span("", text(left)) + span(f"margin-left:auto;{MUTED}", text(" · ".join(others)))
    return div(f"background:{FILL};border-radius:3px;margin-bottom:{GAP[0]}", done) + row(words)


def pre(title: str, lines: Sequence[str]) -> str:
    """Lines of a log with a title; nothing for none."""
    if not lines:
        return ""
    style = (
        f"{MONO};margin:{GAP[0]} 0 0 0;padding:{GAP[1]};background:{FILL};border-radius:3px;border:0;color:inherit;"
        "white-space:pre-wrap;overflow-wrap:anywhere"
    )
    content = text("\n".join(lines))
    return f'{div(f"{SMALL};{MUTED}", text(title))}<pre style="{style}">{content}</pre>'


@dataclass(frozen=True)
class HtmlCell:
    """A cell of a table. ``html``: what stands before the text, made by us."""

    text: str
    colour: str = ""
    html: str = ""


@dataclass(frozen=True)
class Column:
    """A column of a table; ``number``: aligned at the right. ``wraps``: it may take several lines."""

    name: str
    number: bool = False
    wraps: bool = False


def table(columns: Sequence[Column], rows: Iterable[Sequence[HtmlCell]]) -> str:
    """A plain table; where the page is narrower, it can be moved within its place."""
    head = "".join(_cell("th", column, text(column.name), f"font-weight:400;{SMALL};{MUTED}") for column in columns)
    body = "".join(_row(columns, cells) for cells in rows)
    clear = "background:transparent;border:0"
    return div(
        "overflow-x:auto",
        f'<table style="border-collapse:collapse;border:0;margin:0;table-layout:auto;{NUMBERS};{BODY}">'
        f'<thead style="border:0"><tr style="{clear}">{head}</tr></thead><tbody>{body}</tbody></table>',
    )


def _row(columns: Sequence[Column], cells: Sequence[HtmlCell]) -> str:
    content = ""
    for column, cell in zip(columns, cells, strict=True):
        words = span(f"color:{cell.colour}", text(cell.text)) if cell.colour else text(cell.text)
        content += _cell("td", column, cell.html + words, BODY)
    return f'<tr style="background:transparent;border:0">{content}</tr>'


def _cell(tag: str, column: Column, content: str, style: str) -> str:
    side = "right" if column.number else "left"
    wraps = "normal;min-width:140px;overflow-wrap:anywhere" if column.wraps else "nowrap"
    fixed = f"text-align:{side};padding:2px {GAP[3]} 2px 0;border:0;background:transparent;white-space:{wraps}"
    return f'<{tag} style="{fixed};vertical-align:baseline;{style}">{content}</{tag}>'


def duration(seconds: float) -> str:
    """A duration, at most a few characters: 8.3 s, 4 min 10 s, 2 h 05 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def about(seconds: float) -> str:
    """A duration that is only guessed: 40 s, 4 min, 2 h 05 min."""
    if seconds < 90:
        return f"{max(1, round(seconds / 5) * 5) if seconds >= 10 else max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
