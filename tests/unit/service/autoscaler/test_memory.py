"""Tests of stored facts on node groups: boot times, nodes that never came, and idle times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hopsml.errors import ArgumentError
from hopsml.service.autoscaler import FleetMemory, FleetNode, GroupMemory, NodeGroup, NodePhase
from hopsml.service.autoscaler.decide import added_text, booting_text, duration_text, nodes_text, resting_text
from hopsml.service.scheduler.resources import NOTHING, Resources
from tests.unit.service.autoscaler.worlds import cores, group

pytestmark = pytest.mark.fast

CPU, GPU = group("cpu", boot_limit_s=100.0), group("gpu", boot_limit_s=300.0, label="gpu")
GROUPS = {each.name: each for each in (CPU, GPU)}


def node(name: str, phase: NodePhase = NodePhase.BOOTING, launched_s: float = 1000.0, **more: Any) -> FleetNode:
    """Return a node of the group that its name begins with, before the dash."""
    return FleetNode(name, name.split("-")[0], phase, launched_s, **more)


def polled(memory: FleetMemory, now: float, *nodes: FleetNode) -> tuple[FleetMemory, list[str]]:
    """Return the memory after a poll, and the ids of overdue nodes."""
    after, overdue = memory.looked(GROUPS, nodes, now)
    return after, [one.id for one in overdue]


class TestGroupMemory:
    def test_expected_boot_time_is_the_median_of_the_last_fifteen_boots(self):
        memory = GroupMemory()
        assert memory.usual_boot_s(CPU) == 100.0  # none has come: its limit
        for boot_s in (10.0, 30.0, 20.0):
            memory = memory.after_arrival(boot_s)
        assert memory.boots_s == (10.0, 30.0, 20.0) and memory.usual_boot_s(CPU) == 20.0
        for boot_s in range(20):
            memory = memory.after_arrival(float(boot_s))
        assert memory.boots_s == tuple(float(boot_s) for boot_s in range(5, 20))

    def test_arrived_node_resets_the_backoff_and_keeps_the_observed_shape(self):
        seen = (cores(3), "gpu")
        memory = GroupMemory((1.0,), failures=3, rests_until_s=99.0, seen=seen)
        assert memory.after_arrival(2.0) == GroupMemory((1.0, 2.0), 0, 0.0, seen)

    def test_observed_node_shape_overrides_the_configured_one(self):
        assert GroupMemory().shape(GPU) == (cores(4), "gpu")
        assert GroupMemory(seen=(cores(3), "other")).shape(GPU) == (cores(3), "other")

    @pytest.mark.parametrize(
        ("failures", "pause_s"),
        [(0, 60.0), (1, 120.0), (2, 240.0), (5, 1920.0), (6, 3600.0), (10, 3600.0), (99, 3600.0)],
    )
    def test_backoff_after_a_failure_doubles_up_to_one_hour(self, failures: int, pause_s: float):
        memory = GroupMemory((7.0,), failures, 5.0, (cores(1), "x"))
        assert memory.failed(1000.0) == replace(memory, failures=failures + 1, rests_until_s=1000.0 + pause_s)

    def test_failure_changes_only_its_own_group(self):
        memory = FleetMemory({"cpu": GroupMemory((7.0,), 1)}, {"cpu-1": 5.0}, {"cpu-2": 6.0}, frozenset({"cpu-3"}), {})
        after = memory.failed("cpu", 1000.0)
        assert after == replace(memory, groups={"cpu": GroupMemory((7.0,), 2, 1120.0)})
        after = after.failed("gpu", 2000.0)
        assert after.groups == {"cpu": GroupMemory((7.0,), 2, 1120.0), "gpu": GroupMemory((), 1, 2060.0)}
        assert after.group("gpu").failures == 1 and after.group("other") == GroupMemory()


class TestPolled:
    def test_first_poll_without_nodes_records_empty_groups(self):
        after, overdue = polled(FleetMemory(), 1000.0)
        assert overdue == [] and after == FleetMemory({"cpu": GroupMemory(), "gpu": GroupMemory()}, known={})
        assert FleetMemory().known is None

    def test_nodes_are_absent_from_the_first_poll_until_they_are_up(self):
        after, _ = polled(FleetMemory(), 1010.0, node("cpu-1"), node("gpu-1"), node("cpu-2", NodePhase.DRAINING))
        assert after.absent_s == {"cpu-1": 1010.0, "gpu-1": 1010.0} and after.came == frozenset()
        assert after.known == {"cpu-1": "cpu", "gpu-1": "gpu", "cpu-2": "cpu"}
        after, _ = polled(after, 1020.0, node("cpu-1"), node("gpu-1"))
        assert after.absent_s == {"cpu-1": 1010.0, "gpu-1": 1010.0}
        after, _ = polled(after, 1030.0, node("gpu-1"), node("cpu-1", NodePhase.UP, capacity=cores(3), label="x"))
        assert after.absent_s == {"gpu-1": 1010.0} and after.came == {"cpu-1"}
        assert after.groups == {"cpu": GroupMemory((30.0,), seen=(cores(3), "x")), "gpu": GroupMemory()}

    def test_node_up_at_the_first_poll_gives_no_boot_time(self):
        after, _ = polled(FleetMemory(), 1030.0, node("cpu-1", NodePhase.UP, capacity=cores(3)))
        assert after.groups["cpu"] == GroupMemory(seen=(cores(3), "")) and after.came == {"cpu-1"}

    def test_node_that_was_lost_and_returns_gives_no_boot_time(self):
        up = node("cpu-1", NodePhase.UP, capacity=cores(4))
        memory, _ = polled(FleetMemory(), 1000.0, node("cpu-1"))
        memory, _ = polled(memory, 1030.0, up)
        memory, _ = polled(memory, 1040.0, node("cpu-1"))
        assert memory.absent_s == {"cpu-1": 1040.0} and memory.came == {"cpu-1"}
        memory, _ = polled(memory, 1050.0, up)
        assert memory.groups["cpu"].boots_s == (30.0,) and memory.absent_s == {}

    def test_nodes_of_unknown_groups_are_ignored(self):
        after, overdue = polled(FleetMemory(), 9e9, node("other-1"), node("other-2", NodePhase.UP))
        assert overdue == [] and after == FleetMemory({"cpu": GroupMemory(), "gpu": GroupMemory()}, known={})

    def test_facts_about_a_removed_node_are_dropped(self):
        memory = FleetMemory(idle_s={"cpu-1": 5.0, "cpu-2": 6.0}, came=frozenset({"cpu-1", "cpu-2"}))
        after, _ = polled(memory, 1000.0, node("cpu-2", NodePhase.DRAINING))
        assert after.idle_s == {"cpu-2": 6.0} and after.came == {"cpu-2"}

    @pytest.mark.parametrize(
        ("launched_s", "absent_since_s", "now", "overdue"),
        [
            (1000.0, 1000.0, 1099.9, False),
            (1000.0, 1000.0, 1100.0, True),
            (1000.0, 1050.0, 1149.9, False),  # seen for the first time late: it is given a while
            (1000.0, 1050.0, 1150.0, True),
            (1000.0, 900.0, 1099.9, False),
        ],
    )
    def test_absent_node_is_overdue_after_the_boot_limit_of_its_group(self, launched_s, absent_since_s, now, overdue):
        memory = FleetMemory(absent_s={"cpu-1": absent_since_s}, known={"cpu-1": "cpu"})
        after, found = polled(memory, now, node("cpu-1", launched_s=launched_s))
        assert (found == ["cpu-1"]) is overdue and ("cpu-1" not in after.absent_s) is overdue
        assert after.group("cpu").failures == int(overdue)
        assert after.group("cpu").rests_until_s == (now + 60.0 if overdue else 0.0)

    @pytest.mark.parametrize(("absent_s", "overdue"), [(119.9, False), (120.0, True)])
    def test_node_launched_long_ago_is_overdue_two_minutes_after_its_first_poll(self, absent_s, overdue):
        memory = FleetMemory(absent_s={"gpu-1": 5000.0})
        _, found = polled(memory, 5000.0 + absent_s, node("gpu-1", launched_s=0.0))
        assert (found == ["gpu-1"]) is overdue

    @pytest.mark.parametrize(("absent_s", "overdue"), [(299.9, False), (300.0, True)])
    def test_returning_node_is_overdue_after_a_full_boot_limit(self, absent_s, overdue):
        memory = FleetMemory(absent_s={"gpu-1": 5000.0}, came=frozenset({"gpu-1"}))
        _, found = polled(memory, 5000.0 + absent_s, node("gpu-1", launched_s=0.0))
        assert (found == ["gpu-1"]) is overdue

    def test_group_fails_once_for_several_overdue_nodes(self):
        nodes = [node("cpu-1"), node("cpu-2"), node("gpu-1")]
        memory, _ = polled(FleetMemory(), 1000.0, *nodes)
        after, overdue = polled(memory, 1100.0, *nodes)
        assert overdue == ["cpu-1", "cpu-2"] and after.absent_s == {"gpu-1": 1000.0}
        assert after.groups == {"cpu": GroupMemory(failures=1, rests_until_s=1160.0), "gpu": GroupMemory()}


class TestVanished:
    BOOTING = FleetMemory(
        {"cpu": GroupMemory(), "gpu": GroupMemory()},
        absent_s={"cpu-1": 1000.0, "cpu-2": 1000.0, "gpu-1": 1000.0},
        known={"cpu-1": "cpu", "cpu-2": "cpu", "gpu-1": "gpu"},
    )

    @pytest.mark.parametrize(
        ("left", "failed"),
        [
            (["cpu-1", "cpu-2", "gpu-1"], []),
            (["cpu-1", "gpu-1"], ["cpu"]),
            (["cpu-1", "cpu-2"], ["gpu"]),
            ([], ["cpu", "gpu"]),
            (["cpu-1", "cpu-9", "gpu-1"], []),  # one has got its name
            (["cpu-8", "cpu-9", "gpu-1"], []),
            (["cpu-9", "gpu-1"], ["cpu"]),
            (["cpu-1", "cpu-2", "cpu-9"], ["gpu"]),  # a node of another group is no replacement
        ],
    )
    def test_group_fails_if_booting_nodes_vanish_without_replacements(self, left, failed):
        after, _ = polled(self.BOOTING, 1010.0, *map(node, left))
        assert sorted(name for name, each in after.groups.items() if each.failures) == failed

    def test_nodes_that_were_up_or_unseen_before_do_not_count_as_vanished(self):
        was_there = replace(self.BOOTING, came=frozenset({"cpu-1", "cpu-2", "gpu-1"}))
        for memory in (was_there, replace(self.BOOTING, known=None), replace(self.BOOTING, known={})):
            after, _ = polled(memory, 1010.0)
            assert not any(each.failures for each in after.groups.values())

    def test_removed_group_does_not_fail(self):
        memory = FleetMemory(absent_s={"old-1": 1000.0}, known={"old-1": "old"})
        after, _ = polled(memory, 1010.0)
        assert set(after.groups) == {"cpu", "gpu"}


class TestModel:
    def test_node_group_defaults(self):
        assert NodeGroup("cpu", cores(1), 0) == NodeGroup("cpu", cores(1), 0, 0, "", 1.0, 600.0, 600.0)
        assert NodeGroup("cpu", Resources(gpus=1), 2, least=2).least == 2

    @pytest.mark.parametrize(
        ("make", "expected"),
        [
            (lambda: NodeGroup("g", cores(1), 4, 5), "group 'g': min=5 is not between 0 and max=4"),
            (lambda: NodeGroup("g", cores(1), 4, -1), "group 'g': min=-1 is not between 0 and max=4"),
            (
                lambda: NodeGroup("g", NOTHING, 4),
                "group 'g': its nodes have nothing; say how many gpus, cores, how much memory",
            ),
        ],
    )
    def test_invalid_node_group_is_refused_with_the_value_and_the_rule(self, make, expected):
        with pytest.raises(ArgumentError) as refused:
            make()
        assert str(refused.value) == expected


@pytest.mark.parametrize(
    ("format_text", "arguments", "expected"),
    [
        (nodes_text, (0,), "0 nodes"),
        (nodes_text, (1,), "1 node"),
        (nodes_text, (2, "more "), "2 more nodes"),
        (duration_text, (0.4,), "0 s"),
        (duration_text, (119.4,), "119 s"),
        (duration_text, (120.0,), "2 min"),
        (duration_text, (3600.0,), "60 min"),
        (booting_text, ("g", 1, 5.0, 90.0, False), "1 node of 'g' is booting (since 5 s, at most 90 s)"),
        (booting_text, ("g", 2, 150.0, 180.0, True), "2 nodes of 'g' are booting (since 2 min, usually 3 min)"),
        (added_text, ("g", 1, 60.0), "waits for 1 more node of group 'g', about 60 s"),
        (added_text, ("g", 3, 120.0), "waits for 3 more nodes of group 'g', about 2 min"),
        (resting_text, ("g", 1, 60.0), "requested nodes of 'g' did not start; they are requested again in 60 s"),
        (
            resting_text,
            ("g", 2, 240.0),
            "requested nodes of 'g' did not start, 2 times in a row; they are requested again in 4 min",
        ),
    ],
)
def test_wait_texts_state_counts_durations_and_groups(
    format_text: Callable[..., str], arguments: tuple[object, ...], expected: str
):
    assert format_text(*arguments) == expected
