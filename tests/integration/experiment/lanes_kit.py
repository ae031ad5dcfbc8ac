"""Helpers for tests of lanes: real agents and processes on this machine, with trials started by the test."""

from __future__ import annotations

import contextlib
import dataclasses
import pickle
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from hopsml.cluster.shared.spec import IndependentGroup
from hopsml.experiment import collective
from hopsml.experiment.options import RunOptions
from hopsml.experiment.plan import Plan
from hopsml.experiment.run_role import SearchHost
from hopsml.experiment.searches.executors import ExecutorEvent, Lanes, RunOver
from hopsml.search.dispatch.events import AttemptBegan, AttemptEnded, LaneJoined, LaneLost, ValuesReported
from hopsml.search.messages import EndTrial, RunTrial
from tests.helpers.cluster.workloads import WAIT_S


def plan_of(function: Callable[..., Any], count: int = 1, preload: tuple[str, ...] = (), **arguments: Any) -> Plan:
    plain = collective.build(RunOptions(lambda: None, num_workers=count, progress=False, preload=preload), "search")
    spec = msgspec.structs.replace(plain.spec, group=IndependentGroup(size=count), framework="none")
    return dataclasses.replace(plain, spec=spec, function=function, arguments=arguments, standing=SearchHost())


class Bench:
    """A run of trial slots, with the events received from it."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self.folder = Path(lanes.run.run_dir.removeprefix("file://"))
        self.seen: list[ExecutorEvent] = []
        self._looked = 0
        self._count = 0

    def trial(self, config: dict[str, Any] | None = None, **fields: Any) -> RunTrial:
        """Return the next trial, with a number counted up from 0."""
        number, self._count = self._count, self._count + 1
        given = {"number": number, "attempt": 0, "trial_id": f"t{number}", **fields}
        return RunTrial(config=pickle.dumps(config or {}), **given)

    def assign_trial(self, lane: int, config: dict[str, Any] | None = None, **fields: Any) -> RunTrial:
        trial = self.trial(config, **fields)
        self.lanes.assign(lane, trial)
        return trial

    def end(self, lane: int, trial: RunTrial, how: str = "stop", deadline_s: float = 0.0) -> None:
        self.lanes.send_message(lane, EndTrial(trial.number, trial.attempt, how, deadline_s))

    def find_or_wait(self, condition: Callable[[ExecutorEvent], Any]) -> ExecutorEvent:
        """Return the first event that fits, received before or from now on: events of two processes have no order."""
        return next((news for news in self.seen if condition(news)), None) or self.wait_for(condition)

    def wait_for(self, condition: Callable[[ExecutorEvent], Any]) -> ExecutorEvent:
        """Return the next event that fits; other events received meanwhile are stored in ``seen``."""
        deadline = time.monotonic() + 2 * WAIT_S  # other trials may send events without end
        while True:
            assert time.monotonic() < deadline, f"it did not come in {2 * WAIT_S} s; the newest: {self.seen[-5:]}"
            while self._looked < len(self.seen):
                self._looked += 1
                if condition(self.seen[self._looked - 1]):
                    return self.seen[self._looked - 1]
            news = self.lanes.get(WAIT_S)
            assert news is not None, f"nothing happened for {WAIT_S} s after {self.seen[-5:]}"
            self.seen.append(news)

    def joined(self) -> int:
        return self.wait_for(lambda news: isinstance(news.event, LaneJoined)).lane

    def lost(self, lane: int) -> str:
        event = self.wait_for(lambda news: isinstance(news.event, LaneLost) and news.event.lane == lane).event
        assert isinstance(event, LaneLost)
        return event.reason

    def wait_for_begin(self, trial: RunTrial) -> int:
        """Pid of its process."""
        message = self.find_or_wait(
            lambda n: (
                isinstance(n.event, AttemptBegan) and (n.event.number, n.event.attempt) == (trial.number, trial.attempt)
            )
        ).message
        return int(message.pid)  # type: ignore[union-attr]

    def reported(self, trial: RunTrial, step: int = 0) -> ValuesReported:
        event = self.wait_for(
            lambda n: isinstance(n.event, ValuesReported) and n.event.number == trial.number and n.event.step >= step
        ).event
        assert isinstance(event, ValuesReported)
        return event

    def ended(self, trial: RunTrial) -> AttemptEnded:
        event = self.find_or_wait(
            lambda n: (
                isinstance(n.event, AttemptEnded) and (n.event.number, n.event.attempt) == (trial.number, trial.attempt)
            )
        ).event
        assert isinstance(event, AttemptEnded)
        return event

    def over(self) -> RunOver:
        event = self.wait_for(lambda news: isinstance(news.event, RunOver)).event
        assert isinstance(event, RunOver)
        return event

    def log(self, trial: RunTrial) -> str:
        return (self.folder / "trials" / trial.trial_id / "output.log").read_text()


@contextlib.contextmanager
def bench(function: Callable[..., Any], count: int = 1, **arguments: Any) -> Iterator[Bench]:
    """Lanes for the function; the run is over afterwards."""
    with running(plan_of(function, count, **arguments)) as found:
        yield found


@contextlib.contextmanager
def running(plan: Plan) -> Iterator[Bench]:
    found = Bench(Lanes.start(plan))
    try:
        yield found
    finally:
        found.lanes.run.cancel()
        found.lanes.run.join(WAIT_S)
