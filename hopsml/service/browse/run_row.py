"""Summary of one run as a row of the list."""

from __future__ import annotations

from typing import Any

import msgspec

from hopsml.tracking import catalog

LONGEST_VALUE = 200  # most characters of an argument in the table


class RunRow(msgspec.Struct, frozen=True):
    """Row of one run; ``metric`` is the value of ``metric_name``.

    Times are in seconds; ``started`` is in seconds since 1970.
    """

    id: str
    name: str
    state: str
    verb: str
    is_search: bool
    metric_name: str
    metric: float | None
    started: float | None
    seconds: float | None
    workers: int | None
    user: str
    cause: str
    arguments: dict[str, Any]
    metrics: dict[str, float]
    tags: tuple[str, ...] = ()  # set by users of a job service, which stores notes
    note: str = ""


def row_of(stored: catalog.StoredRun) -> RunRow:
    """Return the row of a run whose records were read."""
    record, metric = stored.run, stored.main_metric
    value = _number(metric[1]) if metric else None
    arguments = record.get("arguments")
    return RunRow(
        id=stored.run_id,
        name=str(record.get("name") or ""),
        state=str(stored.state),
        verb=str(record.get("verb") or ""),
        is_search=bool(stored.search),
        metric_name=str(metric[0]) if metric and value is not None else "",
        metric=value,
        started=_number(record.get("started")),
        seconds=_number(stored.seconds) if stored.status is not None else None,
        workers=record.get("workers") if isinstance(record.get("workers"), int) else None,
        user=str(record.get("user") or ""),
        cause=stored.cause[:1000],
        arguments={str(name): _short(value) for name, value in (arguments or {}).items()}
        if isinstance(arguments, dict)
        else {},
        metrics={name: number for name, value in stored.outputs.items() if (number := _number(value)) is not None},
    )


def _number(value: Any) -> float | None:
    """Return a number as float; None for anything else."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:  # an integer beyond the range of floats
        return None


def _short(value: Any) -> Any:
    """Return a value as it is displayed: long or nested ones as shortened text."""
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 1] + "…"
