"""What is shown of a run: a value that knows nothing of HTML, made from its story and its workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hopsml.cluster.gang import Phase
from hopsml.cluster.run_state import MemberView
from hopsml.errors import RunCancelled, WorkerFailed
from hopsml.notebook.story import Story, worth_showing

ROWS = 24  # of workers; the others are counted
NAMED = 4  # ranks that are waited for, by name
METRICS = 12
TAIL_LINES = 20
WIDTH = 160  # of a line of a log
_STAGES = {
    Phase.WAITING: "executors",
    Phase.FORMING: "start",
    Phase.RUNNING: "training",
    Phase.SETTLING: "failure",
    Phase.STOPPING: "closing",
}


@dataclass(frozen=True)
class StageView:
    """One phase and how long it took, or has taken so far."""

    name: str
    seconds: float
    active: bool


@dataclass(frozen=True)
class WorkerRow:
    """One worker; everything is text."""

    rank: str
    host: str
    executor: str
    gpus: str
    state: str
    step: str


@dataclass(frozen=True)
class RunView:
    """All that a person sees; ``state`` is starting, running, closing, finished, failed or cancelled."""

    title: str
    run_id: str
    state: str
    seconds: float
    stages: tuple[StageView, ...] = ()
    waits_for: str = ""
    progress: tuple[tuple[str, str], ...] = ()
    metrics: tuple[tuple[str, str], ...] = ()  # as last reported
    result: tuple[tuple[str, str], ...] = ()  # what the function returned
    workers: tuple[WorkerRow, ...] = ()
    workers_left: str = ""
    notes: tuple[str, ...] = ()
    cause: str = ""
    log_title: str = ""
    log: tuple[str, ...] = ()
    run_dir: str = ""


def view_of(
    story: Story, members: Mapping[int, MemberView], *, size: int, title: str, run_id: str, run_dir: str, now: float
) -> RunView:
    """The run as it stands at ``now`` (seconds since 1970)."""
    state = state_of(story)
    end = story.ended or now
    log_title, log = _log(story)
    return RunView(
        title=title,
        run_id=run_id,
        state=state,
        seconds=max(0.0, end - story.began),
        stages=_stages(story, end),
        waits_for=_waits_for(story, members, size),
        progress=_progress(story),
        metrics=_metrics(story.metrics),
        result=_metrics(_told(story.outputs)),
        workers=tuple(_row(members[rank], story) for rank in _shown(members)),
        workers_left=_left(members, story),
        notes=tuple(_short(note, 300) for note in story.notes),
        cause=_cause(story.error),
        log_title=log_title,
        log=log,
        run_dir=run_dir,
    )


def state_of(story: Story) -> str:
    """One word for where the run stands."""
    if story.ended is not None:
        if story.error is None:
            return "finished"
        return "cancelled" if isinstance(story.error, RunCancelled) else "failed"
    phase = story.stages[-1].phase if story.stages else Phase.WAITING
    if story.is_over or phase in (Phase.STOPPING, Phase.SETTLING):
        return "closing"
    return "running" if phase is Phase.RUNNING else "starting"


def _stages(story: Story, end: float) -> tuple[StageView, ...]:
    ends = [stage.began for stage in story.stages[1:]] + [end]
    last = len(story.stages) - 1 if story.ended is None else -1
    return tuple(
        StageView(_STAGES[stage.phase], max(0.0, until - stage.began), index == last)
        for index, (stage, until) in enumerate(zip(story.stages, ends, strict=True))
    )


# -- what is waited for


def _waits_for(story: Story, members: Mapping[int, MemberView], size: int) -> str:
    if story.ended is not None:
        return ""
    if story.is_over:
        return "the last files of the run directory"
    match story.stages[-1].phase if story.stages else Phase.WAITING:
        case Phase.WAITING:
            return f"executors: {story.waiting or f'{size} workers are asked for'}"
        case Phase.FORMING:
            late = [view for view in members.values() if view.state == "launched"]
            return f"{_named(late)} to import and begin the training function" if late else ""
        case Phase.RUNNING:
            left = [view for view in members.values() if view.state == "running"]
            return f"{_named(left)} to finish" if len(left) < len(members) else ""
        case Phase.SETTLING:
            return "word of the worker that failed first"
        case _:
            return "the end of the workers and their last files"


def _named(views: Sequence[MemberView]) -> str:
    names = [f"rank {view.rank} on {view.host}" for view in sorted(views, key=lambda view: view.rank)]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


# -- numbers


def _progress(story: Story) -> tuple[tuple[str, str], ...]:
    if story.step is None:
        return ()
    rate = story.steps_per_second()
    return (("step", f"{story.step:,}".replace(",", " ")), *((("steps/s", f"{rate:.1f}"),) if rate else ()))


def _told(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers and short texts that the function returned; the log's path was added by hopsml."""
    return {
        name: value
        for name, value in outputs.items()
        if name != "log" and (isinstance(value, (bool, int, float)) or (isinstance(value, str) and len(value) <= 80))
    }


def _metrics(values: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    shown = [(_short(str(name), 40), number(value)) for name, value in values.items()]
    more = [("…", f"{len(shown) - METRICS} more")] if len(shown) > METRICS else []
    return (*shown[:METRICS], *more)


def number(value: Any) -> str:
    """A metric's value: four significant digits of a float, at most 60 characters of anything else."""
    return f"{value:.4g}" if isinstance(value, float) else _short(str(value), 60)


# -- workers


def _shown(members: Mapping[int, MemberView]) -> list[int]:
    """The ranks that get a row: all, or the failed ones and the first of the others."""
    ranks = sorted(members)
    if len(ranks) <= ROWS:
        return ranks
    failed = [rank for rank in ranks if members[rank].state == "failed"]
    others = [rank for rank in ranks if members[rank].state != "failed"]
    return sorted((failed + others)[:ROWS])


def _left(members: Mapping[int, MemberView], story: Story) -> str:
    hidden = set(members) - set(_shown(members))
    counts = Counter(_state(members[rank], story) for rank in hidden)
    return f"{len(hidden)} more: " + ", ".join(f"{n} {state}" for state, n in counts.most_common()) if hidden else ""


def _row(view: MemberView, story: Story) -> WorkerRow:
    return WorkerRow(
        rank=str(view.rank),
        host=_short(view.host, 40),
        executor=_short(view.executor_id, 24),
        gpus=",".join(map(str, view.gpu_indices)) or "–",
        state=_state(view, story),
        step="–" if view.step is None else str(view.step),
    )


def _state(view: MemberView, story: Story) -> str:
    """A worker that had not ended by itself when its group ended was stopped."""
    if story.is_over and view.state in ("launched", "running"):
        return "lost" if isinstance(story.error, WorkerFailed) and story.error.rank == view.rank else "stopped"
    return view.state


# -- trouble


def _cause(error: BaseException | None) -> str:
    if error is None:
        return ""
    if isinstance(error, WorkerFailed):
        return _short(f"rank {error.rank} on {error.host} failed first: {error.cause}", 600)
    return _short(str(error) or type(error).__name__, 600)


def _log(story: Story) -> tuple[str, tuple[str, ...]]:
    """The tail of the log of the rank that failed, else of the chief's output."""
    error = story.error
    if isinstance(error, WorkerFailed):
        text = error.log_tail if error.log_tail.strip() else error.remote_traceback
        tail, title = worth_showing(text.splitlines())[-TAIL_LINES:], f"end of the log of rank {error.rank}"
    else:
        tail, title = list(story.log), "output of rank 0"
    return (title if tail else "", tuple(_short(line, WIDTH) for line in tail))


def _short(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
