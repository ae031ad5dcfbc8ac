"""Trace of a run's launch in the driver: waiting for executors, rendezvous of the workers, first step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from hopsml.cluster.driver.run_state import Change
from hopsml.cluster.gang.events import Phase
from hopsml.cluster.shared.spec import RunSpec
from hopsml.core import tracing
from hopsml.core.callbacks import immediate
from hopsml.training import trace_worker

EXECUTORS, RENDEZVOUS, FIRST_STEP = "executors", "rendezvous", "first step"


class LaunchPart(NamedTuple):
    """Part of a launch, in seconds since 1970; ``problem``: why it was not completed."""

    name: str
    begin_s: float
    end_s: float
    problem: str = ""


def stages(began_s: float, reached: dict[str, float], ended_s: float, problem: str = "") -> Iterator[LaunchPart]:
    """Yield the parts of a launch.

    Args:
        began_s: start of the launch, in seconds since 1970, as all times here.
        reached: end of each completed part, by name.
        ended_s: end of the run: it ends the first part that was not completed.
        problem: error that ended the run; without it, only completed parts are returned.
    """
    begin_s = began_s
    for name in (EXECUTORS, RENDEZVOUS, FIRST_STEP):
        if name not in reached:
            if problem:
                yield LaunchPart(name, begin_s, ended_s, problem)
            return
        yield LaunchPart(name, begin_s, reached[name])
        begin_s = reached[name]


def begun(run_id: str, workers: int) -> LaunchTrace | None:
    """Return the trace of a run that is about to be launched; None if tracing is off."""
    return LaunchTrace(run_id, workers) if tracing.is_on() else None


class LaunchTrace:
    """Observer that traces the launch of one run; its ``context`` is the parent of the workers' spans."""

    def __init__(self, run_id: str, workers: int) -> None:
        self._run_id, self._workers, self._parent = run_id, workers, tracing.given()
        self.context = tracing.child(self._parent)
        self._began_s, self._reached = time.time(), dict[str, float]()

    def carried(self, spec: RunSpec) -> RunSpec:
        """Return the specification for workers, with this trace as parent of their spans, and a hook that ends it."""
        variables = {**spec.environment, **tracing.variables(self.context)}
        return msgspec.structs.replace(spec, environment=variables, hooks=(*spec.hooks, trace_worker.HOOK))

    @immediate
    def on_change(self, change: Change) -> None:
        """Record the end of a part; at the run's end, send all spans. Called on the coordinator's thread."""
        if change.kind == "phase":
            part = {Phase.FORMING.value: EXECUTORS, Phase.RUNNING.value: RENDEZVOUS}.get(change.text)
            if part is not None:
                self._reached.setdefault(part, time.time())
        elif change.kind in ("report", "progress"):
            self._reached.setdefault(FIRST_STEP, time.time())
        elif change.kind == "closed":
            self._send("" if change.error is None else f"{type(change.error).__name__}: {change.error}")

    def _send(self, problem: str) -> None:
        ended_s = time.time()
        for stage in stages(self._began_s, self._reached, ended_s, problem):
            tracing.record(stage.name, tracing.child(self.context), self.context, *stage[1:], run=self._run_id)
        facts: dict[str, str | int] = {"run": self._run_id, "workers": self._workers}
        tracing.record("run", self.context, self._parent, self._began_s, ended_s, problem, **facts)
