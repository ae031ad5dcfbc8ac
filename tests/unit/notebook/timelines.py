"""Sequences of a run's events, as an observer receives them, without a cluster."""

from __future__ import annotations

from typing import Any

from hopsml.cluster.driver.run_state import Change, MemberView
from hopsml.cluster.gang.events import Phase
from hopsml.notebook.run_timeline import RunTimeline
from hopsml.notebook.run_view import view_of
from hopsml.notebook.view import View

STARTED_S = 1_000.0


def members(*states: str) -> dict[int, MemberView]:
    """Return one worker for each state, on hosts named by their rank."""
    return {rank: MemberView(rank, f"node-{rank}", str(rank + 1), (), state) for rank, state in enumerate(states)}


def waiting() -> RunTimeline:
    """Return a run with one of two agents connected."""
    timeline = RunTimeline(STARTED_S)
    timeline.enter_phase(Phase.WAITING, STARTED_S)
    timeline.handle(
        Change("phase", text="waiting for executors: 1 of 2 agents are connected"), Phase.WAITING, STARTED_S + 1
    )
    return timeline


def forming() -> RunTimeline:
    """Return a run whose workers are being launched."""
    timeline = waiting()
    timeline.handle(Change("phase", text="starting workers"), Phase.FORMING, STARTED_S + 2)
    return timeline


def running() -> RunTimeline:
    """Return a training at twenty steps a second."""
    timeline = forming()
    timeline.handle(Change("phase", text="running"), Phase.RUNNING, STARTED_S + 5)
    for k in range(3):
        report = Change("report", 0, metrics={"loss": 1 / (k + 1)}, step=20 * k, time=STARTED_S + 5 + k)
        timeline.handle(report, Phase.RUNNING, STARTED_S + 5 + k)
    return timeline


def stopping() -> RunTimeline:
    """Return a run whose workers have finished but whose group still exists."""
    timeline = running()
    timeline.handle(Change("phase", text="stopping"), Phase.STOPPING, STARTED_S + 9)
    return timeline


def closed(phase: Phase, error: BaseException | None = None, **outputs: Any) -> RunTimeline:
    """Return a closed run."""
    timeline = stopping()
    timeline.handle(Change("end"), phase, STARTED_S + 10)
    timeline.handle(Change("closed", metrics=outputs, error=error), phase, STARTED_S + 11)
    return timeline


def view_at(
    timeline: RunTimeline,
    found: dict[int, MemberView] | None = None,
    at: float = STARTED_S + 30,
    size: int = 2,
    is_told: bool = False,
) -> View:
    """Return the view of a run at a time."""
    return view_of(
        timeline,
        found or {},
        size=size,
        name="digits",
        run_id="app_1",
        run_dir="hdfs://nn/Experiments/app_1",
        now=at,
        is_told=is_told,
    )


def column(view: View, name: str) -> list[str]:
    """Return the texts in a column of a view's table."""
    place = view.table.columns.index(name)
    return [row[place].text for row in view.table.rows]
