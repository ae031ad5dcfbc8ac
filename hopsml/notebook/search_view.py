"""What a person sees of a search: a value made from how it stands, and that as plain text; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hopsml.notebook.history import History, Point, thinned
from hopsml.notebook.style import about, duration
from hopsml.notebook.text import bar, curve, sparkline
from hopsml.notebook.view import CurveView, ProgressView, number
from hopsml.search.dispatch.time_left import Outlook
from hopsml.states import State
from hopsml.tracking.listing import table

ROWS = 12  # of running trials
POINTS = 64  # of a running trial's curve
CONFIGURATION = 70  # characters of a configuration
COLUMNS = ("trial", "value", "curve (min … max)", "step", "on", "configuration")


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
    def state(self) -> State: ...
    @property
    def error(self) -> BaseException | None: ...
    @property
    def deadline_at(self) -> float | None: ...
    def outlook(self) -> Outlook | None: ...


@dataclass(frozen=True)
class TrialRow:
    """A trial that runs; all but ``points`` is text."""

    number: str
    configuration: str
    place: str
    step: str
    value: str
    points: tuple[Point, ...]
    extremes: str  # the lowest and the highest value

    def cells(self, curve: str) -> tuple[str, ...]:
        """Of all columns."""
        return self.number, self.value, curve, self.step, self.place, self.configuration


@dataclass(frozen=True)
class SearchView:
    """All that is shown."""

    title: str
    run_id: str
    state: State
    seconds: float
    waits_for: str
    progress: ProgressView | None
    numbers: tuple[tuple[str, str], ...]
    best: tuple[tuple[str, str], ...]
    improvements: tuple[CurveView, ...]
    running: tuple[TrialRow, ...]
    more: str
    notes: tuple[str, ...]
    cause: str
    run_dir: str


def view_of(search: Standing, is_told: bool = False) -> SearchView:
    """The search as it stands. ``is_told``: its error stands beside the display, and is not said twice."""
    over = search.ended is not None
    numbers = (
        [("trials", str(search.done) + ("" if search.planned is None else f" of {search.planned}"))] if over else []
    )
    numbers += [
        (name, str(search.counts[name]))
        for name in ("running", "stopped", "paused", "failed")
        if search.counts.get(name)
    ]
    numbers += [] if over else [("executors busy", f"{search.busy} of {search.executors}")]
    best: list[tuple[str, str]] = []
    if search.best is not None:
        best = [(search.metric or "metric", number(search.best["value"]))]
        best += [(str(name), number(value)) for name, value in search.best["config"].items()]
    rows = tuple(_row(trial) for trial in sorted(search.running, key=lambda trial: trial.number)[:ROWS])
    hidden = len(search.running) - len(rows)
    return SearchView(
        title=search.run_id if search.name in ("", "no-name") else search.name,
        run_id=search.run_id,
        state=search.state,
        seconds=max(0.0, search.now - search.began),
        waits_for=f"executors: {search.waiting}" if search.waiting and not over and not search.executors else "",
        progress=None if over else _progress(search),
        numbers=tuple(numbers),
        best=tuple(best),
        improvements=_improvements(search),
        running=() if over else rows,
        more=f"{hidden} more are running" if hidden > 0 and not over else "",
        notes=tuple(search.notes[-4:]),
        cause=str(search.error)[:600] if search.error is not None and not is_told else "",
        run_dir=search.run_dir,
    )


def _progress(search: Standing) -> ProgressView | None:
    """Trials that are over, and those that run by their share; or the time, where nobody knows how many there will be."""
    outlook = search.outlook()
    until = None if search.deadline_at is None else max(0.0, search.deadline_at - search.now)
    left = [] if until is None else [f"at most {about(until)} left"]
    if outlook is not None and (until is None or outlook.seconds < until):
        left = [f"about {about(outlook.seconds)} left"]
    if search.planned is not None:
        share = outlook.share if outlook is not None else search.done / max(1, search.planned)
        return ProgressView(share, (f"trials {search.done} of {search.planned}", f"{100 * share:.0f} %", *left))
    if until is None:
        return None
    took = search.now - search.began
    return ProgressView(took / max(1e-9, took + until), (f"trials {search.done}", *left))


def _improvements(search: Standing) -> tuple[CurveView, ...]:
    """The best value so far, by the number of the trial that gave it."""
    history = History()
    for place, (_, value) in enumerate(search.improvements):
        history.add(place, float(value))
    if not history.is_curve:
        return ()
    name = f"best {search.metric or 'metric'} so far ({len(search.improvements) - 1} improvements)"
    return (CurveView(name, tuple(history.points), number(history.low), number(history.high), number(history.last)),)


def _row(trial: RunningTrial) -> TrialRow:
    config = ", ".join(f"{name}={number(value)}" for name, value in trial.config.items())
    history, told = History(), list(trial.curve)
    for step, value in thinned(told, POINTS) if len(told) > POINTS else told:  # many times a second, for many trials
        history.add(step, value)
    return TrialRow(
        number=str(trial.number),
        configuration=config if len(config) <= CONFIGURATION else config[: CONFIGURATION - 1] + "…",
        place=trial.place or "–",
        step="–" if trial.step is None else str(trial.step),
        value="–" if trial.value is None else number(trial.value),
        points=tuple(history.points),
        extremes=f"{number(history.low)} … {number(history.high)}" if history.is_curve else "",
    )


def as_text(view: SearchView) -> str:
    """Some lines, without a line break at the end."""
    name = view.title if view.title == view.run_id else f"{view.title} ({view.run_id})"
    lines = [f"{name}: {view.state}, {duration(view.seconds)}"]
    lines += [view.cause] if view.cause else []
    lines += [f"waiting for {view.waits_for}"] if view.waits_for else []
    lines += [bar(view.progress)] if view.progress is not None else []
    lines += ["  ".join(f"{name} {value}" for name, value in view.numbers)] if view.numbers else []
    lines += ["best: " + "  ".join(f"{name} {value}" for name, value in view.best)] if view.best else []
    lines += [curve(one) for one in view.improvements]
    if view.running:
        rows = [row.cells(f"{sparkline([value for _, value in row.points])} {row.extremes}") for row in view.running]
        lines += table([COLUMNS, *rows])
    lines += [view.more] if view.more else []
    lines += [f"note: {note}" for note in view.notes]
    return "\n".join([*(line.rstrip() for line in lines), f"run directory: {view.run_dir}"])
