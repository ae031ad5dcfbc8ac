"""Tests of a service that may die between any two actions, on an unreliable engine: no job is lost or runs twice."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsml.core.states import Lifecycle
from hopsml.service.lifecycle import (
    Ending,
    EngineSnapshot,
    JobRecord,
    SeenApplication,
    TaskLaunch,
    TaskRule,
    begin_ending,
    begin_try,
    step,
)
from hopsml.service.lifecycle.record import stray_applications

pytestmark = pytest.mark.fast

TASKS = (TaskRule("train"), TaskRule("eval", relaunch=True), TaskRule("serve", ends_with="train"))


@dataclass
class Yarn:
    """Engine that lists a submitted application only after a while."""

    applications: dict[str, tuple[str, Lifecycle]] = field(default_factory=dict)  # id -> (tag, state)
    on_their_way: list[str] = field(default_factory=list)  # tags that will be listed
    silent: bool = False

    def snapshot(self) -> EngineSnapshot:
        if self.silent:
            return EngineSnapshot(None)
        found: dict[str, tuple[SeenApplication, ...]] = {}
        for name, (tag, state) in self.applications.items():
            found[tag] = (*found.get(tag, ()), SeenApplication(name, state))
        return EngineSnapshot(found)

    def list(self) -> None:
        for tag in self.on_their_way:
            self.applications[f"app-{len(self.applications)}"] = (tag, Lifecycle.RUNNING)
        self.on_their_way.clear()

    def end(self, name: str, state: Lifecycle) -> None:
        tag, now = self.applications[name]
        if not now.is_final:
            self.applications[name] = (tag, state)

    def running(self) -> list[str]:
        return [tag for tag, state in self.applications.values() if not state.is_final]


class Died(Exception):
    """kill -9."""


class Service:
    """Service with one job; it dies when ``acts_left`` actions (stores, submissions, kills) are used up."""

    def __init__(self, yarn: Yarn) -> None:
        self.yarn, self.stored, self.now = yarn, JobRecord(1, TASKS, retries=2), 0.0
        self.memory = self.stored
        self.acts_left = -1
        self.ever: list[Lifecycle] = []

    def act(self) -> None:
        if self.acts_left == 0:
            raise Died
        self.acts_left -= 1

    def store(self, record: JobRecord) -> None:
        assert not self.stored.state.is_final or record.state == self.stored.state
        self.act()
        self.stored = replace(
            record, launches=tuple(replace(one, unseen_since_s=None, closing_since_s=None) for one in record.launches)
        )
        self.memory = record

    def submit(self, launches: tuple[TaskLaunch, ...]) -> None:
        for launch in launches:
            self.act()
            assert any(one.tag == launch.tag for one in self.stored.launches)  # the row is stored first
            self.yarn.on_their_way.append(launch.tag)

    def run_pass(self) -> None:
        snapshot = self.yarn.snapshot()
        done = step(self.memory, snapshot, "t", self.now)
        self.store(done.record)
        self.submit(done.submit)
        for name in (
            *done.kill,
            *stray_applications(snapshot, {one.tag: one.application_id for one in self.memory.living}),
        ):
            self.act()
            self.yarn.end(name, Lifecycle.STOPPED)
        if self.memory.state == Lifecycle.WAITING:
            begun = begin_try(self.memory, "t", self.now)
            self.store(begun.record)
            self.submit(begun.submit)


EVENTS = st.one_of(
    st.tuples(st.just("die"), st.integers(0, 4)),
    st.tuples(st.sampled_from(["list", "silent", "speaks", "finish", "fail", "cancel", "preempt"]), st.integers(0, 3)),
    st.tuples(st.just("time"), st.integers(1, 80)),
)


def apply_event(service: Service, what: str, number: int) -> None:
    yarn = service.yarn
    match what:
        case "die":
            service.acts_left = number
        case "time":
            service.now += number
        case "list":
            yarn.list()
        case "silent" | "speaks":
            yarn.silent = what == "silent"
        case "finish" | "fail":
            names = list(yarn.applications)
            if names:
                yarn.end(names[number % len(names)], Lifecycle.FINISHED if what == "finish" else Lifecycle.FAILED)
        case "cancel" | "preempt":
            ending = Ending.CANCELLED if what == "cancel" else Ending.PREEMPTED
            service.store(begin_ending(service.memory, ending, what, service.now))


@given(st.lists(EVENTS, max_size=60))
@settings(max_examples=100)
def test_service_crashes_at_any_action_lose_no_job_and_start_none_twice(history: list[tuple[str, int]]) -> None:
    service = Service(Yarn())
    for what, number in history:
        try:
            apply_event(service, what, number)
            service.run_pass()
        except Died:  # the next process has only what is stored
            service.memory, service.acts_left = service.stored, -1
        service.now += 1.0
    # From here on nothing goes wrong: what was begun is listed, what runs is seen to its end.
    service.acts_left, service.memory, service.yarn.silent = -1, service.stored, False
    for _ in range(400):
        service.run_pass()
        service.yarn.list()
        service.now += 5.0
        running = service.yarn.running()
        tasks = [one.task for one in service.memory.living for tag in running if tag == one.tag]
        assert len(tasks) == len(set(tasks))  # of each task one application at most, of those that belong to it
        if service.memory.state == Lifecycle.RUNNING:
            for name in list(service.yarn.applications):
                service.yarn.end(name, Lifecycle.FINISHED)
        if service.memory.state.is_final and not running:
            break
    assert service.stored.state.is_final, service.stored
    assert service.yarn.running() == []
    if any(what == "cancel" for what, _ in history):
        assert service.stored.state in (Lifecycle.CANCELLED, Lifecycle.FINISHED, Lifecycle.FAILED)
