"""Construction of the view of a run from its timeline and its workers, and of a search from a snapshot; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hopsml.cluster.driver.run_state import MemberView
from hopsml.cluster.gang.events import Phase
from hopsml.core import states
from hopsml.core.states import Lifecycle
from hopsml.errors import WorkerFailed
from hopsml.notebook.run_timeline import MetricHistory, RunTimeline, Usage, displayable_lines, thinned
from hopsml.notebook.style import rounded_duration
from hopsml.notebook.view import (
    Cell,
    CurveView,
    Pairs,
    ProgressView,
    StageView,
    Table,
    View,
    cause_of,
    format_number,
    shorten,
    title_of,
)
from hopsml.search.dispatch.journal import RunningTrial, SearchSnapshot
from hopsml.search.metric import BATCH, epoch_metrics, is_batch_metric, name_of

SEARCH_ROWS = 12  # most running trials in the table
POINTS = 64  # most points of a running trial's curve
CONFIGURATION = 70  # characters of a configuration
COLUMNS = ("trial", "value", "curve (min … max)", "step", "on", "configuration")


def view_of_search(search: SearchSnapshot, is_told: bool = False) -> View:
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
    numbers += [] if over else [("slots busy", f"{search.busy} of {search.executors}")]
    best: Pairs = ()
    if search.best is not None:
        config = search.best["config"].items()
        best = (
            (name_of(search.metric), format_number(search.best["value"])),
            *((str(k), format_number(v)) for k, v in config),
        )
    return View(
        title=title_of(search.name, search.run_id),
        run_id=search.run_id,
        state=search.state,
        seconds=max(0.0, search.now - search.began),
        waits_for=f"executors: {search.waiting}" if search.waiting and not over and not search.executors else "",
        progress=None if over else _search_progress(search),
        numbers=tuple(numbers),
        best=best,
        curves=_improvements(search),
        table=Table() if over else _trials(search),
        notes=search.notes[-4:],
        cause="" if is_told else cause_of(search.error),
        run_dir=search.run_dir,
    )


def _search_progress(search: SearchSnapshot) -> ProgressView | None:
    """Return the progress of the search: the share of trials, or of the time until the deadline.

    Running trials count by their share. None if neither the number of trials nor a deadline is known.
    """
    outlook = search.outlook()
    until = None if search.deadline_at is None else max(0.0, search.deadline_at - search.now)
    left = [] if until is None else [f"at most {rounded_duration(until)} left"]
    if outlook is not None and (until is None or outlook.seconds < until):
        left = [f"about {rounded_duration(outlook.seconds)} left"]
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
    count = len(search.improvements) - 1
    name = f"best {name_of(search.metric)} so far ({count} improvement{'s' * (count != 1)})"
    return (CurveView.of(name, history),)


def _trials(search: SearchSnapshot) -> Table:
    """Return a table of the running trials."""
    shown = sorted(search.running, key=lambda trial: trial.number)[:SEARCH_ROWS]
    hidden = len(search.running) - len(shown)
    return Table(COLUMNS, tuple(map(_trial_row, shown)), f"{hidden} more are running" if hidden > 0 else "")


def _trial_row(trial: RunningTrial) -> tuple[Cell, ...]:
    """Return the table row of a running trial."""
    config = ", ".join(f"{name}={format_number(value)}" for name, value in trial.config.items())
    history, told = MetricHistory(), list(trial.curve)
    # Because this runs several times a second, for many trials.
    for step, value in thinned(told, POINTS) if len(told) > POINTS else told:
        history.add(step, value)
    extremes = f"{format_number(history.low)} … {format_number(history.high)}" if history.is_curve else ""
    return (
        Cell(str(trial.number)),
        Cell("–" if trial.value is None else format_number(trial.value)),
        Cell(extremes, points=tuple(history.points), label=f"trial {trial.number}: {extremes}"),
        Cell("–" if trial.step is None else str(trial.step)),
        Cell(trial.place or "–"),
        Cell(shorten(config, CONFIGURATION)),
    )


ROWS = 24  # most workers in the table; the others are counted
# Columns while the run is active, and afterwards.
_NOW, _OVER = ("CPU", "memory", "GPU use"), ("CPU, mean", "memory, peak")
_ALWAYS = ("rank", "host", "state")
_TRACEBACK = "Traceback (most recent call last):"
NAMED = 4  # ranks that are listed in a waiting message
METRICS = 12
CURVES = 4  # metrics that are drawn; the others are numbers
TAIL_LINES = 20
WIDTH = 160  # characters of a log line
_STAGES = {
    Phase.WAITING: "executors",
    Phase.FORMING: "start",
    Phase.RUNNING: "training",
    Phase.PARKING: "changing",
    Phase.MENDING: "changing",
    Phase.REFORMING: "changing",
    Phase.SETTLING: "failure",
    Phase.STOPPING: "closing",
}


def view_of(
    story: RunTimeline,
    members: Mapping[int, MemberView],
    *,
    size: int,
    name: str,
    run_id: str,
    run_dir: str,
    now: float,
    is_told: bool = False,
) -> View:
    """Return the view of a run at a point in time.

    Args:
        story: timeline of the run.
        members: the workers, by rank.
        size: number of workers that were requested.
        name: name that the caller gave the run.
        run_id: id of the run.
        run_dir: URL of the run directory.
        now: seconds since 1970.
        is_told: whether the cell shows the error, with its cause and traceback, next to the display, so that the view
            omits them.
    """
    state = state_of(story)
    end = story.ended or now
    log_title, log = _log(story, is_told)
    curves, progress = _curves(story), _progress(story, now)
    return View(
        title=title_of(name, run_id),
        run_id=run_id,
        state=state,
        seconds=max(0.0, end - story.began),
        stages=_stages(story, end),
        waits_for=_waits_for(story, members, size),
        progress=progress,
        numbers=_steps(story, progress)
        + _metrics({name: v for name, v in story.metrics.items() if name not in {c.name for c in curves}}),
        curves=curves,
        result=_metrics(_told(story.outputs)),
        table=_workers(members, story),
        notes=tuple(shorten(note, 300) for note in story.notes),
        cause="" if is_told else cause_of(story.error),
        log_title=log_title,
        log=log,
        run_dir=run_dir,
    )


def state_of(story: RunTimeline) -> Lifecycle:
    """Return the state of the run: that of its phase, or its outcome if it has ended."""
    if story.ended is not None:
        return states.final_state(story.error)
    phase = story.stages[-1].phase if story.stages else Phase.WAITING
    return Lifecycle.CLOSING if story.is_over else phase.state


def _stages(story: RunTimeline, end: float) -> tuple[StageView, ...]:
    """Return the stages in the order of their first occurrence; repeated ones, as in a changing group, are summed."""
    ends = [*(stage.began for stage in story.stages[1:]), end][
        : len(story.stages)
    ]  # empty if the run had ended before it was shown
    seconds: dict[str, float] = {}
    times: Counter[str] = Counter()
    for stage, until in zip(story.stages, ends, strict=True):
        name = _STAGES[stage.phase]
        seconds[name] = seconds.get(name, 0.0) + max(0.0, until - stage.began)
        times[name] += 1
    active = _STAGES[story.stages[-1].phase] if story.stages and story.ended is None else ""
    return tuple(
        StageView(name if times[name] == 1 else f"{name} ×{times[name]}", took, name == active)
        for name, took in seconds.items()
    )


# waiting messages


def _waits_for(story: RunTimeline, members: Mapping[int, MemberView], size: int) -> str:
    """Return what the run waits for in its present phase; an empty string if nothing."""
    if story.ended is not None:
        return ""
    if story.is_over:
        return "the last files of the run directory"
    match story.stages[-1].phase if story.stages else Phase.WAITING:
        case Phase.WAITING:
            return f"executors: {story.waiting or f'{size} workers are asked for'}"
        case Phase.FORMING:
            late = [view for view in members.values() if view.state == Lifecycle.STARTING]
            return f"{_named(late)} to import and begin the training function" if late else ""
        case Phase.RUNNING:
            left = [view for view in members.values() if view.state == Lifecycle.RUNNING]
            return f"{_named(left)} to finish" if len(left) < len(members) else ""
        case Phase.PARKING:
            return "the workers' next commit: the group is going to change"
        case Phase.MENDING:
            return "the workers to continue with other members"
        case Phase.REFORMING:
            return "the end of the previous group; another one follows"
        case Phase.SETTLING:
            return "the report of the worker that failed first"
        case _:
            return "the end of the workers and their last files"


def _named(views: Sequence[MemberView]) -> str:
    """Return the first ranks and hosts, and the number of the others."""
    names = [f"rank {view.rank} on {view.host}" for view in sorted(views, key=lambda view: view.rank)]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


# numbers


def _progress(story: RunTimeline, now: float) -> ProgressView | None:
    """Return the progress bar; None if no worker has reported a number of steps, or the training has succeeded."""
    told = story.progress
    if told is None or told.total < 1 or (story.ended is not None and story.error is None):
        return None
    share = min(1.0, told.done / told.total)
    facts = [f"{told.unit} {_whole(told.done)} of {_whole(told.total)}"]
    facts += [f"{rate:.1f} steps/s"] if (rate := story.steps_per_second()) else []
    facts += [f"{100 * share:.0f} %"]
    if story.ended is None and not story.is_over and story.stages and story.stages[-1].phase is Phase.RUNNING:
        left = told.seconds_left(now)
        if left is not None and told.done < told.total:
            facts.append(f"about {rounded_duration(left)} left")
    return ProgressView(share, tuple(facts))


def _steps(story: RunTimeline, progress: ProgressView | None) -> Pairs:
    """Return the step and the rate, if no progress bar shows them."""
    if story.step is None or progress is not None:
        return ()
    rate = story.steps_per_second()
    return (("step", _whole(story.step)), *((("steps/s", f"{rate:.1f}"),) if rate else ()))


def _whole(value: int) -> str:
    """Format a whole number with spaces between thousands."""
    return f"{value:,}".replace(",", " ")


def _curves(story: RunTimeline) -> tuple[CurveView, ...]:
    """Return curves of the first metrics with several different values; within an epoch until there are two epochs."""
    curves = {name: history for name, history in story.histories.items() if history.is_curve}
    within = [name for name in curves if is_batch_metric(name) and name.removeprefix(BATCH) not in curves]
    return tuple(CurveView.of(shorten(name, 40), curves[name]) for name in [*epoch_metrics(curves), *within][:CURVES])


def _told(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers and short texts that the function returned, without the log's path, which hopsml adds."""
    return {
        name: value
        for name, value in outputs.items()
        if name != "log" and (isinstance(value, (bool, int, float)) or (isinstance(value, str) and len(value) <= 80))
    }


def _metrics(values: Mapping[str, Any]) -> Pairs:
    """Format the first metrics, and the number of the others."""
    shown = [(shorten(str(name), 40), format_number(value)) for name, value in values.items()]
    more = [("…", f"{len(shown) - METRICS} more")] if len(shown) > METRICS else []
    return (*shown[:METRICS], *more)


# -- workers


def _shown(members: Mapping[int, MemberView]) -> list[int]:
    """Return the ranks in the table: all, or the failed ones and the first of the others."""
    ranks = sorted(members)
    if len(ranks) <= ROWS:
        return ranks
    failed = [rank for rank in ranks if members[rank].state == Lifecycle.FAILED]
    others = [rank for rank in ranks if members[rank].state != Lifecycle.FAILED]
    return sorted((failed + others)[:ROWS])


def _workers(members: Mapping[int, MemberView], story: RunTimeline) -> Table:
    """Return a table with a row per shown rank, without columns that are empty for all of them."""
    ranks = _shown(members)
    rows = [_row(members[rank], story) for rank in ranks]
    names = max(rows, key=len, default={})
    columns = tuple(name for name in names if name in _ALWAYS or any(row.get(name) for row in rows))
    hidden = [_state(members[rank], story) for rank in sorted(set(members) - set(ranks))]
    counts = ", ".join(f"{count} {state}" for state, count in Counter(hidden).most_common())
    cells = (
        tuple(Cell(row.get(name) or "–", row[name] if name == "state" else "") for name in columns) for row in rows
    )
    return Table(columns, tuple(cells), f"{len(hidden)} more: {counts}" if hidden else "")


def _row(view: MemberView, story: RunTimeline) -> dict[str, str]:
    """Return a worker's cells by column, the most important first, because a narrow page cuts off the rest."""
    return {
        "rank": str(view.rank),
        "state": _state(view, story),
        "step": "" if view.step is None else _whole(view.step),
        **dict(_usage(story.usage.get(view.rank), story.ended is not None)),
        "host": shorten(view.host, 40),
        "executor": shorten(view.executor_id, 24),
        "GPUs": ",".join(map(str, view.gpu_indices)),
    }


def _usage(known: Usage | None, over: bool) -> Pairs:
    """Return the latest resource usage, or totals if the run is over; CPU is in percent of one core."""
    if known is None or not known.newest:
        return ()
    if over:
        mean = f"{known.cpu_sum / known.samples:.0f} %" if known.samples else ""
        return tuple(zip(_OVER, (mean, _memory(known.memory_peak)), strict=True))
    cpu = known.newest.get("cpu_utilization_percentage")
    gpus = [
        value
        for name, value in known.newest.items()
        if name.startswith("gpu_") and name.endswith("_utilization_percentage")
    ]
    texts = (
        f"{cpu:.0f} %" if cpu is not None else "",
        _memory(known.newest.get("memory_usage_megabytes", 0.0)),
        f"{sum(gpus) / len(gpus):.0f} %" if gpus else "",
    )
    return tuple(zip(_NOW, texts, strict=True))


def _memory(megabytes: float) -> str:
    """Format an amount of memory in MB or GB; "" if it was not measured."""
    if megabytes <= 0:
        return ""
    return f"{megabytes / 1000:.1f} GB" if megabytes >= 1000 else f"{megabytes:.0f} MB"


def _state(view: MemberView, story: RunTimeline) -> str:
    """Return a worker's state.

    One that was active when its group ended is shown as stopped, or lost if it failed the run.
    """
    if story.is_over and view.state in (Lifecycle.STARTING, Lifecycle.RUNNING):
        was_lost = isinstance(story.error, WorkerFailed) and story.error.rank == view.rank
        return Lifecycle.LOST if was_lost else Lifecycle.STOPPED
    return view.state


# errors


def _log(story: RunTimeline, is_told: bool) -> tuple[str, tuple[str, ...]]:
    """Return title and tail of the failed rank's log, else of the output of rank 0.

    ``is_told``: leave out what the error next to the display contains.
    """
    error = story.error
    if isinstance(error, WorkerFailed):
        text = error.log_tail if error.log_tail.strip() else error.remote_traceback
        if is_told:  # the error has the traceback, or where there is none the end of the log
            text = _before_tracebacks(error.log_tail, error.remote_traceback.count(_TRACEBACK))
        tail, title = displayable_lines(text.splitlines())[-TAIL_LINES:], f"end of the log of rank {error.rank}"
    else:
        tail, title = list(story.log), "output of rank 0"
    return (title if tail else "", tuple(shorten(line, WIDTH) for line in tail))


def _before_tracebacks(log: str, count: int) -> str:
    """Return a log without its last ``count`` tracebacks."""
    return _TRACEBACK.join(log.split(_TRACEBACK)[:-count]) if count else ""
