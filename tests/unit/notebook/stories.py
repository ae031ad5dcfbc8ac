"""Sequences of a run's events, as an observer receives them, without a cluster."""

from __future__ import annotations

from typing import Any

from hopsml.cluster.driver.run_state import Change, MemberView
from hopsml.cluster.gang.events import Phase
from hopsml.notebook.run_timeline import RunTimeline
from hopsml.notebook.run_view import view_of
from hopsml.notebook.view import View

BEGAN = 1_000.0


def members(*states: str) -> dict[int, MemberView]:
    """One worker for each state, on hosts named by their rank."""
    return {rank: MemberView(rank, f"node-{rank}", str(rank + 1), (), state) for rank, state in enumerate(states)}


def waiting() -> RunTimeline:
    """One of two agents is there."""
    story = RunTimeline(BEGAN)
    story.enter(Phase.WAITING, BEGAN)
    story.handle(Change("phase", text="waiting for executors: 1 of 2 agents are connected"), Phase.WAITING, BEGAN + 1)
    return story


def forming() -> RunTimeline:
    """The workers are launched."""
    story = waiting()
    story.handle(Change("phase", text="starting workers"), Phase.FORMING, BEGAN + 2)
    return story


def running() -> RunTimeline:
    """Twenty steps a second."""
    story = forming()
    story.handle(Change("phase", text="running"), Phase.RUNNING, BEGAN + 5)
    for k in range(3):
        report = Change("report", 0, metrics={"loss": 1 / (k + 1)}, step=20 * k, time=BEGAN + 5 + k)
        story.handle(report, Phase.RUNNING, BEGAN + 5 + k)
    return story


def stopping() -> RunTimeline:
    """Nobody works any more; the group is not gone yet."""
    story = running()
    story.handle(Change("phase", text="stopping"), Phase.STOPPING, BEGAN + 9)
    return story


def closed(phase: Phase, error: BaseException | None = None, **outputs: Any) -> RunTimeline:
    """The run's end."""
    story = stopping()
    story.handle(Change("end"), phase, BEGAN + 10)
    story.handle(Change("closed", metrics=outputs, error=error), phase, BEGAN + 11)
    return story


def look(
    story: RunTimeline,
    found: dict[int, MemberView] | None = None,
    at: float = BEGAN + 30,
    size: int = 2,
    is_told: bool = False,
) -> View:
    """What is shown at that time."""
    return view_of(
        story,
        found or {},
        size=size,
        name="digits",
        run_id="app_1",
        run_dir="hdfs://nn/Experiments/app_1",
        now=at,
        is_told=is_told,
    )


def column(view: View, name: str) -> list[str]:
    """The texts in a column of its table."""
    place = view.table.columns.index(name)
    return [row[place].text for row in view.table.rows]
