"""Runs and results as text: rows of a table, for a terminal and a notebook, and lines of JSON, for programs."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hopsml.tracking.catalog import StoredRun


def loss_texts(losses: Any) -> list[str]:
    """Return a sentence for each lost worker of ``status.json``; older records, and malformed ones, have none."""
    return [_loss_text(one) for one in losses if isinstance(one, dict)] if isinstance(losses, list) else []


def _loss_text(loss: dict[str, Any]) -> str:
    at, again = loss.get("step"), loss.get("replaced_at")
    replaced = (
        "replaced" + (f" at step {again}" if again is not None else "") if loss.get("replaced") else "not replaced"
    )
    lost = f"rank {loss.get('rank')} was lost" + (f" at step {at}" if at is not None else "")
    return f"{lost} ({short_text(loss.get('cause'), 200)}), {replaced}"


def json_line(content: Any, ascii_only: bool = False) -> str:
    """Return the content as one line of JSON that every parser accepts.

    Python writes a loss that diverged as NaN, and can read it; JavaScript, jq and strict parsers reject the whole line.
    Here it is the text "NaN", an overflow "Infinity" or "-Infinity": ``float()``, like JavaScript's ``Number()``,
    converts them to numbers again. The files of a run directory, which Python reads, contain the numbers.

    Args:
        content: What to write.
        ascii_only: Escape all other characters.

    Raises:
        TypeError: JSON cannot represent a value.
    """
    return json.dumps(_finite(content), ensure_ascii=ascii_only, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


COLUMNS = ("run", "name", "state", "workers", "started", "duration", "result")
NUMBERS = ("workers", "duration")  # aligned at the right
NAME_AT, STATE, STARTED, RESULT = (COLUMNS.index(name) for name in ("name", "state", "started", "result"))
NAME, NAME_NARROW = 30, 20  # columns of a name in a wide and in a narrow terminal
NAME_LEAST = 12  # columns of a name, for which a narrower terminal has no start and no duration
RESULT_WIDTH = 40  # columns that a result must have; with fewer it is put on a separate line
GAP = "  "
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_LARGEST_FLOAT = 10**308  # larger integers are written with all digits


def format_table(rows: Sequence[Sequence[str]], numbers: Sequence[str] = ()) -> list[str]:
    """Return lines with aligned columns, by their width in a terminal.

    Args:
        rows: cells of each line; the first one contains the column names.
        numbers: names of the columns that are aligned at the right.
    """
    widths = [max(display_width(row[column]) for row in rows) for column in range(len(rows[0]))]
    right = [name in numbers for name in rows[0]]
    return [GAP.join(map(pad_to_width, row, widths, right)).rstrip() for row in rows]


def format_labelled(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Return lines of names and values, with the values below each other."""
    widest = max((len(name) for name, _ in rows), default=0)
    return [f"{name:{widest}}  {value}".rstrip() for name, value in rows]


def value_text(value: Any) -> str:
    """Return a value of a summary: a float with four decimals, anything else with at most 100 characters."""
    if isinstance(value, float):
        return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e9 else f"{value:.4g}"
    return str(value)[:100]


def display_width(text: str) -> int:
    """Return the number of columns of a text in a terminal: two for a wide character, none for a combining one."""
    from rich.cells import cell_len

    return cell_len(text)


def pad_to_width(text: str, places: int, right: bool = False) -> str:
    """Return the text padded with blanks to ``places`` columns of a terminal.

    The blanks are at its end, or with ``right`` before it.
    """
    blanks = " " * (places - display_width(text))
    return blanks + text if right else text + blanks


def truncate_to_width(text: str, places: int) -> str:
    """Return the text in at most ``places`` columns, with an ellipsis where it was cut."""
    from rich.cells import set_cell_size

    return text if display_width(text) <= places else set_cell_size(text, max(0, places - 1)).rstrip() + "…"


def strip_control_sequences(text: str) -> str:
    """Remove terminal control sequences (colours, movements, bells) and changes of writing direction from a text."""
    return _CONTROL.sub("", text)


def short_text(value: Any, width: int = 60) -> str:
    """Return a value as text on one line of at most ``width`` characters; "-" for None."""
    if value is None:
        return "-"
    text = " ".join(
        strip_control_sequences(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).split()
    )
    return text if len(text) <= width else text[: width - 3] + "..."


def number_text(value: Any) -> str:
    """Return a value as ``short_text`` does, but a float with six significant digits."""
    return f"{value:.6g}" if isinstance(value, float) else short_text(value)


def run_cells(run: StoredRun) -> tuple[str, ...]:
    """Return the uncut cells of one run in a table with ``COLUMNS``."""
    return (
        run.run_id,
        short_text(run.run.get("name") or "-", 200),
        run.state,
        str(run.run.get("workers", "-")),
        time_text(run.run.get("started")),
        duration_text(run.seconds),
        result_text(run),
    )


def result_text(run: StoredRun) -> str:
    """Return the metric of a run that finished, else the cause of its failure; "-" for neither."""
    if run.cause:
        return short_text(run.cause, 1000)
    metric = run.main_metric
    so_far = " so far" if run.best else ""
    if metric is None or not isinstance(metric[1], (int, float)):
        return "-"
    is_float = isinstance(metric[1], float) or abs(metric[1]) < _LARGEST_FLOAT
    return f"{metric[0]}={f'{metric[1]:.6g}' if is_float else short_text(metric[1])}{so_far}"


def fit_runs_to_width(runs: Sequence[StoredRun], places: int) -> list[list[str]]:
    """Return the runs as lines of at most ``places`` columns, each as a list of its cells.

    The first line contains the column names. In a narrow terminal, a run's result is on a separate line, as its only
    cell. Cells are padded, so that they are aligned when they are joined by ``GAP``. The run's id is never cut, since
    users copy it.
    """
    cells = [run_cells(run) for run in runs]
    wide = _cut_names([COLUMNS, *cells], NAME)
    room = places - len(GAP) * (len(COLUMNS) - 1) - sum(_widths(wide)[:RESULT])
    if room >= RESULT_WIDTH:
        widths = [*_widths(wide)[:RESULT], room]
        return [_aligned(line, widths, COLUMNS) for line in wide]
    times = [time_text(run.run.get("started"), brief=True) for run in runs]
    kept = _narrow_columns(cells, times, places)
    names = [COLUMNS[column] for column in kept]
    shorter = [[time if k == STARTED else line[k] for k in kept] for line, time in zip(cells, times, strict=True)]
    narrow = _cut_names([names, *shorter], NAME_NARROW)
    widths = _widths(narrow)
    over = sum(widths) + len(GAP) * (len(widths) - 1) - places
    widths[NAME_AT] = max(4, widths[NAME_AT] - max(0, over))
    lines = [_aligned(names, widths, names)]
    for line, full in zip(narrow[1:], cells, strict=True):
        lines.append(_aligned(line, widths, names))
        lines += [[truncate_to_width(f"{GAP}{full[RESULT]}", places)]] if full[RESULT] != "-" else []
    return lines


def _narrow_columns(cells: Sequence[Sequence[str]], times: Sequence[str], places: int) -> list[int]:
    """Return the columns of a narrow terminal: so many that a name has ``NAME_LEAST`` places, if that is possible."""
    widths = _widths([COLUMNS, *cells])
    widths[STARTED] = max(map(display_width, (COLUMNS[STARTED], *times)))
    widths[NAME_AT] = min(widths[NAME_AT], NAME_LEAST)
    kept = [column for column, name in enumerate(COLUMNS) if name not in ("workers", "result")]
    for column in (STARTED, COLUMNS.index("duration")):
        if sum(widths[each] for each in kept) + len(GAP) * (len(kept) - 1) > places:
            kept.remove(column)
    return kept


def _cut_names(rows: Sequence[Sequence[str]], places: int) -> list[list[str]]:
    return [
        [truncate_to_width(cell, places) if column == NAME_AT else cell for column, cell in enumerate(line)]
        for line in rows
    ]


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(display_width, column)) for column in zip(*rows, strict=True)]


def _aligned(line: Sequence[str], widths: Sequence[int], names: Sequence[str]) -> list[str]:
    return [
        pad_to_width(truncate_to_width(cell, at), at, name in NUMBERS)
        for cell, at, name in zip(line, widths, names, strict=True)
    ]


def time_text(seconds: float | None, *, brief: bool = False) -> str:
    """Return seconds since 1970 as date and time in this machine's zone; "-" for none.

    ``brief``: without year and seconds.
    """
    return time.strftime("%m-%d %H:%M" if brief else "%Y-%m-%d %H:%M:%S", time.localtime(seconds)) if seconds else "-"


def duration_text(seconds: float | None) -> str:
    """Return seconds as "1.2 s", "3.4 min" or "5.6 h"; "-" for None."""
    if seconds is None:
        return "-"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
