"""Construction of the view of a search from a snapshot of it; pure."""

from __future__ import annotations

from hopsml.notebook.history import MetricHistory, thinned
from hopsml.notebook.style import about
from hopsml.notebook.view import Cell, CurveView, Pairs, ProgressView, Table, View, cause_of, number, short, title_of
from hopsml.search.dispatch.journal import RunningTrial, SearchSnapshot
from hopsml.search.metric import name_of

ROWS = 12  # most running trials in the table
POINTS = 64  # most points of a running trial's curve
CONFIGURATION = 70  # characters of a configuration
COLUMNS = ("trial", "value", "curve (min … max)", "step", "on", "configuration")


def view_of(search: SearchSnapshot, is_told: bool = False) -> View:
    """Return the view of a search; ``is_told``: leave out the error, which the cell shows next to the display."""
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
    best: Pairs = ()
    if search.best is not None:
        config = search.best["config"].items()
        best = ((name_of(search.metric), number(search.best["value"])), *((str(k), number(v)) for k, v in config))
    return View(
        title=title_of(search.name, search.run_id),
        run_id=search.run_id,
        state=search.state,
        seconds=max(0.0, search.now - search.began),
        waits_for=f"executors: {search.waiting}" if search.waiting and not over and not search.executors else "",
        progress=None if over else _progress(search),
        numbers=tuple(numbers),
        best=best,
        curves=_improvements(search),
        table=Table() if over else _trials(search),
        notes=search.notes[-4:],
        cause="" if is_told else cause_of(search.error),
        run_dir=search.run_dir,
    )


def _progress(search: SearchSnapshot) -> ProgressView | None:
    """Return the progress of the search: the share of trials, or of the time until the deadline.

    Running trials count by their share. None if neither the number of trials nor a deadline is known.
    """
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


def _improvements(search: SearchSnapshot) -> tuple[CurveView, ...]:
    """Return a curve of the best value so far, with one point per improvement."""
    history = MetricHistory()
    for place, (_, value) in enumerate(search.improvements):
        history.add(place, float(value))
    if not history.is_curve:
        return ()
    name = f"best {name_of(search.metric)} so far ({len(search.improvements) - 1} improvements)"
    return (CurveView.of(name, history),)


def _trials(search: SearchSnapshot) -> Table:
    """Return a table of the running trials."""
    shown = sorted(search.running, key=lambda trial: trial.number)[:ROWS]
    hidden = len(search.running) - len(shown)
    return Table(COLUMNS, tuple(map(_row, shown)), f"{hidden} more are running" if hidden > 0 else "")


def _row(trial: RunningTrial) -> tuple[Cell, ...]:
    """Return the table row of a running trial."""
    config = ", ".join(f"{name}={number(value)}" for name, value in trial.config.items())
    history, told = MetricHistory(), list(trial.curve)
    # Because this runs several times a second, for many trials.
    for step, value in thinned(told, POINTS) if len(told) > POINTS else told:
        history.add(step, value)
    extremes = f"{number(history.low)} … {number(history.high)}" if history.is_curve else ""
    return (
        Cell(str(trial.number)),
        Cell("–" if trial.value is None else number(trial.value)),
        Cell(extremes, points=tuple(history.points), label=f"trial {trial.number}: {extremes}"),
        Cell("–" if trial.step is None else str(trial.step)),
        Cell(trial.place or "–"),
        Cell(short(config, CONFIGURATION)),
    )
