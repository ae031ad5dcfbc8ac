"""Runs as rows of a table, for a terminal and for a notebook."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hopsml.tracking.catalog import StoredRun

COLUMNS = ("run", "name", "state", "workers", "started", "took", "metric")


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines with aligned columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def short(value: Any, width: int = 60) -> str:
    """A value on one line; "-" for none."""
    if value is None:
        return "-"
    text = " ".join((value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).split())
    return text if len(text) <= width else text[: width - 3] + "..."


def row(run: StoredRun) -> tuple[str, ...]:
    """The cells of ``COLUMNS``."""
    metric = run.main_metric
    return (
        run.run_id,
        short(run.run.get("name") or "-", 30),
        run.state,
        str(run.run.get("workers", "-")),
        time_text(run.run.get("started")),
        duration(run.seconds),
        f"{metric[0]}={metric[1]:.6g}" if metric and isinstance(metric[1], (int, float)) else "-",
    )


def time_text(seconds: float | None) -> str:
    """Seconds since 1970 as date and time of this machine's zone; "-" for none."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) if seconds else "-"


def duration(seconds: float | None) -> str:
    """At most a few characters; "-" for None."""
    if seconds is None:
        return "-"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
