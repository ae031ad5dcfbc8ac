"""HTML elements and visual style of the notebook output: font sizes, distances, state colours; pure.

Styles are inline, and all colours except those of states derive from the page's by transparency: they suit light and
dark themes, and pass JupyterLab's sanitizer of untrusted notebooks.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hopsml.core.states import Lifecycle

TITLE, BODY, SMALL = (
    "font-size:15px;line-height:20px",
    "font-size:13px;line-height:20px",
    "font-size:12px;line-height:16px",
)
GAP = ("4px", "8px", "12px", "16px")  # the only distances
LINE = "1px solid rgba(128,128,128,0.3)"
FILL = "rgba(128,128,128,0.12)"
MUTED = "opacity:0.65"
STRONG = "font-weight:600"
NUMBERS = "font-variant-numeric:tabular-nums"
SANS = "font-family:system-ui,-apple-system,'Segoe UI',Roboto,sans-serif"
MONO = f"font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;{SMALL}"
WIDTH_PX = 760

# Each has a contrast of 4.3 to 1 with white and with black.
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


def state_colour(state: str) -> str:
    """Return the colour of a state; grey for an unknown state or one that is neither activity, success nor failure."""
    return _TONES.get(Lifecycle(state), _GREY) if state in Lifecycle.__members__ else _GREY


def escape_text(value: str) -> str:
    """Escape a text for HTML content and attributes."""
    return html.escape(value, quote=True)


def div(style: str, content: str) -> str:
    """Return a block element; ``content`` is HTML."""
    return f'<div style="{style}">{content}</div>'


def span(style: str, html: str) -> str:
    """Return an inline element; ``html`` is not escaped."""
    return f'<span style="{style}">{html}</span>'


def row(content: str, between: str = GAP[3]) -> str:
    """Return elements in a row, which wraps where there is no room; ``content`` is HTML."""
    return div(f"display:flex;flex-wrap:wrap;gap:0 {between};align-items:baseline;{NUMBERS}", content)


def frame(parts: Iterable[str], state: str) -> str:
    """Return the outer box, with its left edge in the colour of the state; empty parts are left out."""
    content = "".join(
        div(f"margin-top:{GAP[1]}" if number else "", part) for number, part in enumerate(filter(None, parts))
    )
    style = (
        f"border:{LINE};border-left:3px solid {state_colour(state)};border-radius:4px;padding:{GAP[2]} {GAP[3]};"
        f"margin:{GAP[0]} 0;max-width:{WIDTH_PX}px;box-sizing:border-box;{SANS};{BODY}"
    )
    return div(style, content)


def heading(title: str, state: str, took: str, run_id: str = "") -> str:
    """Return the first line: title, run id, state and duration."""
    name = span(f"{SMALL};{MUTED};overflow-wrap:anywhere", escape_text(run_id)) if run_id and title != run_id else ""
    stands = span(f"color:{state_colour(state)};{STRONG}", escape_text(state)) + f" {span(MUTED, escape_text(took))}"
    return row(
        span(f"{TITLE};{STRONG};overflow-wrap:anywhere", escape_text(title))
        + name
        + span(f"margin-left:auto;white-space:nowrap;{NUMBERS}", stands),
        GAP[1],
    )


def labelled(label: str, value: str, style: str = "") -> str:
    """Return a label and a text; an empty string for an empty text."""
    if not value:
        return ""
    head = f"{span(MUTED, escape_text(label))} " if label else ""
    return head + span(f"overflow-wrap:anywhere;{style}", escape_text(value))


def numbers(pairs: Sequence[tuple[str, str]], label: str = "") -> str:
    """Return names and values in one line; an empty string if there are none."""
    if not pairs:
        return ""
    cells = [
        span("overflow-wrap:anywhere", f"{span(MUTED, escape_text(name))} {span(STRONG, escape_text(value))}")
        for name, value in pairs
    ]
    return row((span(MUTED, escape_text(label)) if label else "") + "".join(cells))


def bar(share: float, state: str, facts: Sequence[str]) -> str:
    """Return a progress bar with texts below it: the first at the left, the others at the right."""
    percent = f"{100 * min(1.0, max(0.0, share)):.1f}%"
    done = div(f"width:{percent};height:6px;border-radius:3px;background:{state_colour(state)}", "")
    left, *others = facts
    words = span("", escape_text(left)) + span(f"margin-left:auto;{MUTED}", escape_text(" · ".join(others)))
    return div(f"background:{FILL};border-radius:3px;margin-bottom:{GAP[0]}", done) + row(words)


def pre(title: str, lines: Sequence[str]) -> str:
    """Return lines of a log with a title; an empty string if there are none."""
    if not lines:
        return ""
    style = (
        f"{MONO};margin:{GAP[0]} 0 0 0;padding:{GAP[1]};background:{FILL};border-radius:3px;border:0;color:inherit;"
        "white-space:pre-wrap;overflow-wrap:anywhere"
    )
    content = escape_text("\n".join(lines))
    return f'{div(f"{SMALL};{MUTED}", escape_text(title))}<pre style="{style}">{content}</pre>'


@dataclass(frozen=True)
class HtmlCell:
    """Cell of a table; ``html`` is trusted HTML in front of the text."""

    text: str
    colour: str = ""
    html: str = ""


@dataclass(frozen=True)
class Column:
    """Column of a table; ``number``: right-aligned; ``wraps``: may take several lines."""

    name: str
    number: bool = False
    wraps: bool = False


def table(columns: Sequence[Column], rows: Iterable[Sequence[HtmlCell]]) -> str:
    """Return a table, which scrolls horizontally where the page is narrower."""
    head = "".join(
        _cell("th", column, escape_text(column.name), f"font-weight:400;{SMALL};{MUTED}") for column in columns
    )
    body = "".join(_row(columns, cells) for cells in rows)
    clear = "background:transparent;border:0"
    return div(
        "overflow-x:auto",
        f'<table style="border-collapse:collapse;border:0;margin:0;table-layout:auto;{NUMBERS};{BODY}">'
        f'<thead style="border:0"><tr style="{clear}">{head}</tr></thead><tbody>{body}</tbody></table>',
    )


def _row(columns: Sequence[Column], cells: Sequence[HtmlCell]) -> str:
    """Return the HTML of a table row."""
    content = ""
    for column, cell in zip(columns, cells, strict=True):
        words = span(f"color:{cell.colour}", escape_text(cell.text)) if cell.colour else escape_text(cell.text)
        content += _cell("td", column, cell.html + words, BODY)
    return f'<tr style="background:transparent;border:0">{content}</tr>'


def _cell(tag: str, column: Column, content: str, style: str) -> str:
    """Return the HTML of a table cell."""
    side = "right" if column.number else "left"
    wraps = "normal;min-width:140px;overflow-wrap:anywhere" if column.wraps else "nowrap"
    fixed = f"text-align:{side};padding:2px {GAP[3]} 2px 0;border:0;background:transparent;white-space:{wraps}"
    return f'<{tag} style="{fixed};vertical-align:baseline;{style}">{content}</{tag}>'


def duration(seconds: float) -> str:
    """Return a duration as a short text: 8.3 s, 4 min 10 s, 2 h 05 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def rounded_duration(seconds: float) -> str:
    """Return an estimated duration as a rounded text: 40 s, 4 min, 2 h 05 min."""
    if seconds < 90:
        return f"{max(1, round(seconds / 5) * 5) if seconds >= 10 else max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
