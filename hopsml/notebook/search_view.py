"""What a person sees of a search: a value made from how it stands, as HTML and as plain text; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hopsml.notebook import html
from hopsml.notebook.view import number
from hopsml.tracking.listing import table

ROWS = 12  # of running trials
CURVE = 24  # characters of a learning curve
_BARS = "▁▂▃▄▅▆▇█"
_TONES = {"running": "#3b82c4", "FINISHED": "#2f9e5f", "FAILED": "#d64545", "CANCELLED": "#8a8f98"}


class RunningTrial(Protocol):
    """A trial that is being carried out."""

    @property
    def number(self) -> int: ...
    @property
    def config(self) -> Mapping[str, Any]: ...
    @property
    def place(self) -> str: ...
    @property
    def step(self) -> int | None: ...
    @property
    def value(self) -> float | None: ...
    @property
    def curve(self) -> Sequence[tuple[int, float]]: ...


class Standing(Protocol):
    """A search at one moment."""

    @property
    def run_id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def run_dir(self) -> str: ...
    @property
    def began(self) -> float: ...
    @property
    def now(self) -> float: ...
    @property
    def counts(self) -> Mapping[str, int]: ...
    @property
    def planned(self) -> int | None: ...
    @property
    def done(self) -> int: ...
    @property
    def best(self) -> Mapping[str, Any] | None: ...
    @property
    def metric(self) -> str: ...
    @property
    def running(self) -> Sequence[RunningTrial]: ...
    @property
    def executors(self) -> int: ...
    @property
    def busy(self) -> int: ...
    @property
    def waiting(self) -> str: ...
    @property
    def notes(self) -> Sequence[str]: ...
    @property
    def improvements(self) -> Sequence[tuple[int, float]]: ...
    @property
    def ended(self) -> float | None: ...
    @property
    def state(self) -> str: ...
    @property
    def error(self) -> BaseException | None: ...
    def seconds_left(self) -> float | None: ...


@dataclass(frozen=True)
class SearchView:
    """All that is shown; everything is text."""

    title: str
    state: str
    seconds: float
    numbers: tuple[tuple[str, str], ...]
    best: tuple[tuple[str, str], ...]
    improvements: str
    running: tuple[tuple[str, str, str, str, str, str], ...]
    more: str
    notes: tuple[str, ...]
    cause: str
    run_dir: str


COLUMNS = ("trial", "configuration", "on", "step", "value", "curve")


def view_of(search: Standing) -> SearchView:
    """The search as it stands."""
    over = search.ended is not None
    planned = f"/{search.planned}" if search.planned is not None else ""
    numbers = [("trials", f"{search.done}{planned}")]
    numbers += [(name, str(search.counts[name])) for name in ("stopped", "failed", "paused") if search.counts.get(name)]
    if not over:
        numbers.append(("executors busy", f"{search.busy}/{search.executors}"))
        left = search.seconds_left()
        numbers += [("left", f"about {html.duration(left)}")] if left is not None else []
    best: list[tuple[str, str]] = []
    if search.best is not None:
        best = [(search.metric or "metric", number(search.best["value"]))]
        best += [(str(name), number(value)) for name, value in search.best["config"].items()]
    rows = tuple(_row(trial) for trial in sorted(search.running, key=lambda trial: trial.number)[:ROWS])
    hidden = len(search.running) - len(rows)
    waits = [f"executors: {search.waiting}"] if search.waiting and not over and not search.executors else []
    return SearchView(
        title=search.run_id if search.name in ("", "no-name") else f"{search.name} ({search.run_id})",
        state=search.state,
        seconds=max(0.0, search.now - search.began),
        numbers=tuple(numbers),
        best=tuple(best),
        improvements=sparkline([value for _, value in search.improvements]),
        running=() if over else rows,
        more=f"{hidden} more are running" if hidden > 0 and not over else "",
        notes=(*waits, *search.notes[-4:]),
        cause=str(search.error)[:600] if search.error is not None else "",
        run_dir=search.run_dir,
    )


def _row(trial: RunningTrial) -> tuple[str, str, str, str, str, str]:
    config = ", ".join(f"{name}={number(value)}" for name, value in trial.config.items())
    return (
        str(trial.number),
        config if len(config) <= 70 else config[:69] + "…",
        trial.place or "–",
        "–" if trial.step is None else str(trial.step),
        "–" if trial.value is None else number(trial.value),
        sparkline([value for _, value in list(trial.curve)]),
    )


def sparkline(values: Sequence[float]) -> str:
    """The values as bars, the newest on the right; empty for fewer than two."""
    if len(values) < 2:
        return ""
    step = max(1.0, len(values) / CURVE)
    shown = [values[min(len(values) - 1, int((index + 1) * step) - 1)] for index in range(min(CURVE, len(values)))]
    low, high = min(shown), max(shown)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[int((value - low) * scale)] for value in shown)


def as_text(view: SearchView) -> str:
    """Some lines, without a line break at the end."""
    lines = [f"{view.title}: {view.state}, {html.duration(view.seconds)}"]
    lines.append("  ".join(f"{name} {value}" for name, value in view.numbers))
    if view.best:
        lines.append("best: " + "  ".join(f"{name} {value}" for name, value in view.best) + f"  {view.improvements}")
    if view.running:
        lines += table([COLUMNS, *view.running])
    lines += [view.more] if view.more else []
    lines += [f"note: {note}" for note in view.notes]
    lines += [view.cause] if view.cause else []
    return "\n".join([*(line.rstrip() for line in lines), f"run directory: {view.run_dir}"])


def as_html(view: SearchView) -> str:
    """One self-contained fragment; see ``html``."""
    parts = [
        html.heading(view.title, view.state, _TONES.get(view.state, _TONES["running"]), view.seconds),
        html.numbers(view.numbers),
        html.numbers(view.best, "best"),
        html.line("so far", view.improvements),
        html.table(COLUMNS, view.running) if view.running else "",
        html.line("", view.more),
        *(html.line("note", note) for note in view.notes),
        html.cause(view.cause),
        html.line("run directory", view.run_dir),
    ]
    return html.frame("".join(parts), _TONES.get(view.state, _TONES["running"]))
