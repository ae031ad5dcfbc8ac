"""Tests of the autoscaler's invariants: limits hold, used nodes remain, and the cluster settles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsml.service.autoscaler import LaunchNodes, NodePhase
from hopsml.service.autoscaler.decide import Packing
from tests.unit.service.autoscaler.worlds import World, gang, group

pytestmark = pytest.mark.fast
GROUPS = (
    group("small", each=2, most=3, least=1, idle_s=60.0, boot_limit_s=120.0),
    group("large", each=6, most=2, price=2.5, idle_s=90.0, boot_limit_s=200.0),
    group("labelled", each=4, most=2, label="gpu", idle_s=60.0),
)
gangs = st.builds(gang, st.integers(1, 8), st.integers(1, 4), st.sampled_from(["", "", "gpu"]))
events = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), gangs),
        st.tuples(st.sampled_from(["end", "cancel", "warn", "lose", "estimate"]), st.integers(0, 20)),
        st.tuples(st.just("later"), st.floats(1.0, 100.0)),
        st.tuples(st.just("boots"), st.sampled_from([20.0, 60.0, None])),
        st.tuples(st.just("restart"), st.none()),
    ),
    max_size=30,
)


def apply_events(history: list[Any], seen: list[str] | None = None) -> World:
    """Apply events to a ``World``, which asserts group limits and that no node in use ends."""
    world = World(*GROUPS, static={"a": 3})
    for number, (kind, detail) in enumerate(history):
        among = {
            "end": world.running,
            "cancel": world.waiting,
            "warn": world.fleet,
            "lose": world.fleet,
            "estimate": world.running,
        }
        if kind == "submit":
            world.waiting[f"j{number}"] = detail
        elif kind == "boots":
            world.boots_s = detail
        elif kind == "restart":
            world.memory = type(world.memory)()
        elif kind != "later" and among[kind]:
            apply_event(world, kind, sorted(among[kind])[detail % len(among[kind])], detail)
        actions = world.run_pass(detail if kind == "later" else 5.0)
        if seen is not None:
            seen += actions
    return world


def apply_event(world: World, kind: str, which: str, detail: int) -> None:
    if kind == "end":
        world.end(which)
    elif kind == "cancel":
        del world.waiting[which]
    elif kind == "estimate":
        world.ends_s[which] = world.now + 20.0 * detail
    elif kind == "warn":
        world.fleet[which] = replace(world.fleet[which], is_warned=True)
    elif not world.nodes.in_use(world.fleet[which].name):
        world.nodes.remove_capacity(which)
        del world.fleet[which]


def finish(world: World) -> None:
    """Let all jobs run and end."""
    world.boots_s = 30.0
    for _ in range(60):
        world.run_passes(30, 10.0)
        if not world.running:
            break
        for job in list(world.running):
            world.end(job)


@settings(deadline=None, max_examples=20)
@given(history=events)
def test_empty_queue_shrinks_every_group_to_its_minimum_and_stays_there(history: list[Any]) -> None:
    world = apply_events(history)
    world.waiting.clear()
    finish(world)
    world.run_passes(100, 10.0)
    for each in GROUPS:
        assert len(world.up(each.name)) == each.least == sum(node.group == each.name for node in world.fleet.values())
    assert world.run_passes(100) == []


@settings(deadline=None, max_examples=20)
@given(history=events)
def test_every_job_that_fits_the_possible_nodes_runs(history: list[Any]) -> None:
    world = apply_events(history)
    for kind in [node for node in world.fleet.values() if node.is_warned]:
        world.fleet[kind.id] = replace(world.fleet[kind.id], is_warned=False)  # the provider does not carry it out
    possible = Packing(World(static={"a": 3}).nodes)
    for each in GROUPS:
        for number in range(each.most):
            possible.add_node(f"{each.name}{number}", each.capacity, each.label)
    finish(world)
    assert not [job for job, wanted in world.waiting.items() if possible.place(wanted) is not None]


@settings(deadline=None, max_examples=20)
@given(history=events)
def test_launched_nodes_suffice_for_the_jobs_they_are_launched_for(history: list[Any]) -> None:
    world = apply_events(history)
    decision = world.decided()
    launches = [action for action in decision.actions if isinstance(action, LaunchNodes)]
    served = {job for launch in launches for job in launch.jobs}
    packing = Packing(world.nodes)
    for end in world.demand().ends:
        if end.at_s <= world.now + max(each.boot_limit_s for each in GROUPS):
            packing.give_back(end.gang, end.placement)
    for node in world.fleet.values():
        if node.phase == NodePhase.DRAINING or node.is_warned:
            packing.close(node.name)
    recalled = {action.node.id for action in decision.actions if type(action).__name__ == "RecallNode"}
    here = {each.name: each for each in GROUPS}
    for node in world.fleet.values():
        if (node.phase == NodePhase.BOOTING and not node.is_warned) or node.id in recalled:
            packing.add_node(node.name or node.id, here[node.group].capacity, here[node.group].label)
    for launch in launches:
        for number in range(launch.count):
            packing.add_node(f"+{launch.group}{number}", here[launch.group].capacity, here[launch.group].label)
    for job in served:
        placement = packing.place(world.waiting[job])
        assert placement is not None


@settings(deadline=None, max_examples=20)
@given(history=events)
def test_equal_events_give_equal_actions(history: list[Any]) -> None:
    first: list[str] = []
    second: list[str] = []
    apply_events(history, first), apply_events(history, second)
    assert first == second


@settings(deadline=None, max_examples=20)
@given(waiting=st.lists(gangs, max_size=6), boots_s=st.sampled_from([10.0, 60.0, 110.0]))
def test_unchanged_load_needs_no_further_actions(waiting: list[Any], boots_s: float) -> None:
    """Once nodes are up and idle ones are removed, none is added or ended again."""
    world = World(*GROUPS, static={"a": 3}, boots_s=boots_s)
    world.waiting = {f"j{number}": each for number, each in enumerate(waiting)}
    world.run_passes(120, 5.0)
    assert world.run_passes(200, 10.0) == []


@settings(deadline=None, max_examples=20)
@given(period_s=st.floats(5.0, 50.0), wanted=gangs)
def test_pauses_shorter_than_the_idle_time_drain_no_node(period_s: float, wanted: Any) -> None:
    world = World(*GROUPS, static={"a": 3}, boots_s=30.0)
    world.waiting["first"] = wanted
    world.run_passes(60)
    actions = []
    for number in range(20):
        for job in list(world.running):
            world.end(job)
        world.run_pass(period_s)
        world.waiting = {f"n{number}": wanted}
        actions += [word for word in world.run_pass(1.0) if not word.startswith("+")]
    assert actions == []
