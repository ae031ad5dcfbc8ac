"""What is shown of a run or of a search: values that know nothing of HTML."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hopsml.errors import WorkerFailed
from hopsml.notebook.history import MetricHistory, Point
from hopsml.states import Lifecycle

NUMBERS = ("rank", "step", "trial", "value", "CPU", "memory", "GPU use", "CPU, mean", "memory, peak")  # of columns
Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class StageView:
    """One phase and how long it took, or has taken so far."""

    name: str
    seconds: float
    active: bool


@dataclass(frozen=True)
class ProgressView:
    """How much is done: a share of 1, and what is said of it: how far, and how long it will take."""

    share: float
    facts: tuple[str, ...]


@dataclass(frozen=True)
class CurveView:
    """A metric over the steps; ``low``, ``high`` and ``last`` are text."""

    name: str
    points: tuple[Point, ...]
    low: str
    high: str
    last: str

    @classmethod
    def of(cls, name: str, history: MetricHistory) -> CurveView:
        """The values of a metric that was added to a history."""
        return cls(name, tuple(history.points), number(history.low), number(history.high), number(history.last))


@dataclass(frozen=True)
class Cell:
    """A cell of a table. ``state``: in whose colour the text is; ``points``: a curve before it, with a label."""

    text: str
    state: str = ""
    points: tuple[Point, ...] = ()
    label: str = ""


@dataclass(frozen=True)
class Table:
    """Names of the columns, of which those in ``NUMBERS`` are aligned at the right; ``more``: what of it is not shown."""

    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Cell, ...], ...] = ()
    more: str = ""


@dataclass(frozen=True)
class View:
    """All that a person sees; what is empty is not shown."""

    title: str
    run_id: str
    state: Lifecycle
    seconds: float
    stages: tuple[StageView, ...] = ()
    cause: str = ""  # why it failed, or was cancelled
    waits_for: str = ""
    progress: ProgressView | None = None
    numbers: Pairs = ()
    best: Pairs = ()  # the best trial of a search: its value, its configuration
    curves: tuple[CurveView, ...] = ()
    result: Pairs = ()  # what the function returned
    table: Table = Table()  # of the workers, or of the trials that run
    notes: tuple[str, ...] = ()
    log_title: str = ""
    log: tuple[str, ...] = ()
    run_dir: str = ""


def title_of(name: str, run_id: str) -> str:
    """The name that the caller gave a run or a search; its id where there is none."""
    return run_id if name in ("", "no-name") else name


def cause_of(error: BaseException | None) -> str:
    """Why a run or a search failed or was cancelled; "" for None."""
    if error is None:
        return ""
    if isinstance(error, WorkerFailed):
        return short(f"rank {error.rank} on {error.host}: {error.cause}", 600)
    return short(str(error) or type(error).__name__, 600)


def number(value: Any) -> str:
    """A metric's value: four significant digits of a float, at most 60 characters of anything else."""
    return f"{value:.4g}" if isinstance(value, float) else short(str(value), 60)


def short(text: str, width: int) -> str:
    """The text, cut to at most ``width`` characters, an ellipsis at its end."""
    return text if len(text) <= width else text[: width - 1] + "…"
