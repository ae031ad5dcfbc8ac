"""State machine of an elastic group, prepared in the state that a test starts from; agent x is on host-x."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hopsml.cluster.gang import events
from hopsml.cluster.gang.elastic.machine import ElasticGroupMachine
from hopsml.cluster.gang.elastic.state import Growth, InPlaceState
from hopsml.cluster.gang.events import Phase
from hopsml.cluster.shared.spec import ElasticGroup

Kind = Callable[[ElasticGroup], ElasticGroupMachine]


def restarting_group(given: ElasticGroup) -> ElasticGroupMachine:
    """A group whose members change only in new processes."""
    return ElasticGroupMachine(given, in_place=InPlaceState(enabled=False), growth=Growth(enabled=False))


def continuing_group(given: ElasticGroup) -> ElasticGroupMachine:
    """A group that loses members in place, and admits others only in new processes."""
    return ElasticGroupMachine(given, growth=Growth(enabled=False))


def spec(**other: Any) -> ElasticGroup:
    given: dict[str, Any] = {"size": 3, "min_size": 2, "start_timeout_s": 10, "min_workers_timeout_s": 20}
    return ElasticGroup(**{**given, **other})


def grant(machine: ElasticGroupMachine, *names: str, now: float = 0.0, ready: bool = True) -> list[events.Action]:
    return machine.handle(events.Granted(names, tuple(f"host-{n}" for n in names), (ready,) * len(names)), now)


def running(*names: str, kind: Kind = restarting_group, begun: bool = True, **other: Any) -> ElasticGroupMachine:
    """``begun``: whether the workers have, all but the first."""
    machine = kind(spec(**{"size": max(3, len(names)), **other}))
    machine.begin(0.0)
    grant(machine, *names)
    machine.handle(events.Tick(), 1.5)
    for name in names if begun else names[:1]:
        machine.handle(events.Started(name, 0), 2.0)
    assert machine.phase is (Phase.RUNNING if begun else Phase.FORMING)
    return machine


def report_start(machine: ElasticGroupMachine, *names: str, now: float) -> list[events.Action]:
    generation = machine.generation
    return [one for name in names for one in machine.handle(events.Started(name, generation), now)]


def of_kind(actions: list[events.Action], kind: type) -> list[Any]:
    return [action for action in actions if isinstance(action, kind)]


def close(machine: ElasticGroupMachine, *names: str, now: float = 5.0) -> list[events.Action]:
    generation, actions = machine.generation, list[events.Action]()
    for name in names:
        actions += machine.handle(events.Closed(name, generation), now)
    return actions


def request_drain(machine: ElasticGroupMachine, *names: str, time_s: float, now: float = 3.0) -> list[events.Action]:
    return [one for name in names for one in machine.handle(events.DrainRequested(name, "its node goes", time_s), now)]


def report_commit(machine: ElasticGroupMachine, step: int, *names: str, now: float = 3.0) -> list[events.Action]:
    generation = machine.generation
    return [one for name in names for one in machine.handle(events.WorkerCommitted(name, generation, step), now)]


def report_pause(machine: ElasticGroupMachine, step: int, *names: str, now: float) -> list[events.Action]:
    generation = machine.generation
    return [one for name in names for one in machine.handle(events.PausedAtCommit(name, generation, step), now)]


def grown_group(**other: Any) -> ElasticGroupMachine:
    """Two members, who have made commits, and a third that joined them at step 7; generation 1 has begun."""
    machine = running("a", "b", **{"fruitless_limit": 1, "reset_limit": 0, **other})
    for name in "ab":
        machine.handle(events.WorkerCommitted(name, 0, 5), 3.0)
    grant(machine, "c", now=3.5)
    machine.handle(events.PausedAtCommit("a", 0, 7), 4.0)
    machine.handle(events.WorkerCommitted("b", 0, 7), 4.0)
    (start,) = of_kind(close(machine, "a", "b", now=4.0), events.StartGeneration)
    assert set(start.agent_ids) == {"a", "b", "c"}
    machine.handle(events.Ranked(("a", "b", "c")), 4.2)
    for name in "abc":
        machine.handle(events.Started(name, 1), 4.5)
    return machine


def report_storage_failure(machine: ElasticGroupMachine, now: float) -> list[events.Action]:
    names, actions = tuple(machine.members), list[events.Action]()
    for name in names:
        cause = "the store could not be read: nobody answers"
        actions += machine.handle(events.Failed(name, machine.generation, cause, storage=True), now)
    return actions + close(machine, *names, now=now)
