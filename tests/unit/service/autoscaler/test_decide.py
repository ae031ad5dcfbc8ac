"""Tests of the autoscaler's decisions: the fewest nodes for gangs that lack them, removed when unused."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from hopsml.errors import ArgumentError
from hopsml.service.autoscaler import (
    DrainNode,
    FleetMemory,
    FleetNode,
    GroupMemory,
    LaunchNodes,
    NodePhase,
    TerminateNode,
    decide_scaling,
    growth_text,
)
from hopsml.service.scheduler import reasons
from hopsml.service.scheduler.nodes import Nodes
from hopsml.service.scheduler.resources import GangRequest, GangShape, Queue, Resources, SlotGroup
from tests.unit.service.autoscaler.worlds import World, cores, gang, group

pytestmark = pytest.mark.fast


def test_gang_gets_the_fewest_sufficient_nodes_once_and_runs_on_them() -> None:
    world = World(group(each=4, most=8), static={"a": 2})
    world.waiting["one"] = gang(10)
    assert world.run_pass() == ["+2 cpu"]
    assert world.run_pass() == []  # they boot
    assert world.run_passes(12) == [] and "one" in world.running


@pytest.mark.parametrize("count", range(1, 9))
def test_node_count_launched_for_a_gang_is_rounded_up(count: int) -> None:
    world = World(group(each=4, most=8))
    world.waiting["one"] = gang(4 * count - 1)
    assert world.run_pass() == [f"+{count} cpu"]


def test_free_cores_split_over_nodes_do_not_fit_a_larger_slot() -> None:
    world = World(group(each=4), static={"a": 3, "b": 3})
    world.waiting["one"] = gang(2, each=2)
    assert world.run_pass() == []  # 2 on each of them
    world.waiting["two"] = gang(1, each=2)
    assert world.run_pass() == ["+1 cpu"]  # two cores are free, and no two on one node


def test_gangs_of_one_decision_share_new_nodes() -> None:
    world = World(group(each=4))
    world.waiting |= {"one": gang(3), "two": gang(3), "three": gang(1)}
    assert world.run_pass() == ["+2 cpu"]


def test_no_node_is_launched_if_a_running_gang_ends_before_it_would_boot() -> None:
    world = World(group(boot_limit_s=100.0), static={"a": 4})
    world.waiting["one"] = gang(4)
    world.run_pass()
    world.waiting["two"] = gang(4)
    world.ends_s["one"] = world.now + 80.0
    assert world.run_pass() == []
    world.ends_s["one"] = world.now + 300.0
    assert world.run_pass() == ["+1 cpu"]


def test_cheapest_groups_are_launched_and_combined_for_a_large_gang() -> None:
    large = group("large", each=8, price=3.0)
    world = World(group("small", each=2, price=1.0), large)
    world.waiting["one"] = gang(2, each=2)
    assert world.run_pass() == ["+2 small"]
    world = World(group("small", each=2, price=1.0), large)
    world.waiting["one"] = gang(8)
    assert world.run_pass() == ["+1 large"]  # 3 in place of 4
    world = World(group("small", each=2, price=1.0), large)
    world.waiting["one"] = gang(10)
    assert world.run_pass() == ["+1 small", "+1 large"]
    world = World(group("a", each=2), group("b", each=2))
    world.waiting["one"] = gang(2)
    assert world.run_pass() == ["+1 a"]


def test_gang_with_several_labels_gets_nodes_of_each_label() -> None:
    driver = SlotGroup("driver", 1, cores(1), is_driver=True)
    workers = SlotGroup("workers", 4, Resources(gpus=1, cores=1), label="gpu")
    gpu = replace(group("gpu", label="gpu"), capacity=Resources(2, 8, 1 << 14))
    world = World(group(), gpu)
    world.waiting["one"] = GangShape((driver, workers))
    assert world.run_pass() == ["+1 cpu", "+2 gpu"]


def test_group_does_not_exceed_its_maximum_or_grow_for_gangs_that_cannot_fit() -> None:
    world = World(group(each=4, most=2))
    world.waiting["huge"] = gang(9)
    world.waiting["wide"] = gang(1, each=5)
    assert world.run_pass() == []
    world.waiting["small"] = gang(1)
    assert world.run_pass() == ["+1 cpu"]


def test_group_keeps_its_minimum_and_drains_idle_nodes_before_ending_them() -> None:
    world = World(group(least=1, idle_s=100.0))
    assert world.run_pass() == ["+1 cpu"]
    world.waiting["one"] = gang(8)
    assert world.run_pass() == ["+1 cpu"]
    assert world.run_passes(20) == [] and "one" in world.running
    world.end("one")
    actions = world.run_passes(100)
    assert [word.split()[0] for word in actions] == ["drain", "end"] and len(world.up("cpu")) == 1


def test_idle_node_is_retained_for_a_waiting_gang_that_could_use_it() -> None:
    world = World(group(most=2, idle_s=50.0))
    world.waiting |= {"one": gang(4), "two": gang(4)}
    world.run_passes(20)
    world.end("one")
    world.waiting["both"] = gang(8)
    assert world.run_passes(50) == []
    world.waiting.clear()
    assert world.run_passes(50) == ["drain cpu-1", "end cpu-1"]


def test_idle_node_is_retained_for_a_gang_whose_other_nodes_are_booting() -> None:
    world = World(group(idle_s=50.0), boots_s=20.0)
    world.waiting["one"] = gang(4)
    world.run_passes(10)
    world.end("one")
    world.boots_s = 150.0
    world.waiting["wide"] = gang(8)
    assert world.run_pass() == ["+1 cpu"]
    assert world.run_passes(40) == [] and "wide" in world.running


def test_draining_node_that_is_needed_again_is_recalled() -> None:
    world = World(group(idle_s=50.0))
    world.waiting["one"] = gang(4)
    world.run_passes(15)
    world.end("one")
    while not (actions := world.run_pass()):
        pass
    assert actions == ["drain cpu-1"]
    world.waiting["two"] = gang(5)
    assert world.run_pass() == ["recall cpu-1", "+1 cpu"]


def test_draining_node_in_use_is_not_terminated() -> None:
    world = World(group(idle_s=50.0))
    world.waiting["one"] = gang(4)
    world.run_passes(15)
    world.fleet["cpu-1"] = replace(world.fleet["cpu-1"], is_warned=True)
    assert world.run_pass() == ["drain cpu-1"]
    assert world.run_passes(50) == []
    world.end("one")
    assert world.run_pass() == ["end cpu-1"]


def test_warned_node_counts_as_absent() -> None:
    world = World(group())
    world.waiting["one"] = gang(2)
    world.run_passes(15)
    world.fleet["cpu-1"] = replace(world.fleet["cpu-1"], is_warned=True)
    world.waiting["two"] = gang(2)  # it would fit next to `one`
    assert world.carry_out(world.decided()) == ["drain cpu-1", "+1 cpu"]
    assert "cpu-1" in world.decided().view.closed


def test_node_that_never_boots_is_requested_again_after_doubling_pauses() -> None:
    world = World(group(boot_limit_s=100.0), boots_s=None)
    world.waiting["one"] = gang(4)
    requested, waits = [], []
    for _ in range(400):
        actions = world.run_pass()
        requested += [world.now] if "+1 cpu" in actions else []
        waits += [world.decided().view.waits["one"]] if "end cpu-2" in actions else []
    gaps = [round(later - before) for before, later in itertools.pairwise(requested)]
    assert gaps[:4] == [165, 225, 345, 585]  # 100 s from the look that found it, and 60, 120, 240, 480
    assert waits == ["requested nodes of 'cpu' did not start, 2 times in a row; they are requested again in 2 min"]


def test_group_with_vanished_nodes_backs_off_but_renamed_placeholders_do_not_count() -> None:
    world = World(group(), boots_s=None)
    world.waiting["one"] = gang(4)
    world.run_pass(), world.run_pass()
    world.fleet = {"i-7": replace(world.fleet["cpu-1"], id="i-7")}  # the placeholder is replaced by the real node
    assert world.run_pass() == [] and not world.memory.group("cpu").failures
    world.fleet = {}
    assert world.run_pass() == [] and world.memory.group("cpu").failures == 1


def test_boot_time_estimate_follows_the_nodes_that_booted() -> None:
    world = World(group(each=4, boot_limit_s=500.0), boots_s=60.0)
    world.waiting["one"] = gang(4)
    world.run_pass()
    assert world.decided().view.waits["one"] == "1 node of 'cpu' is booting (since 0 s, at most 8 min)"
    world.run_passes(15)
    assert world.memory.group("cpu").boots_s == (60.0,)
    world.waiting["two"] = gang(8)
    assert world.decided().view.waits["two"] == "waits for 2 more nodes of group 'cpu', about 60 s"
    world.run_pass(), world.run_pass()
    assert world.decided().view.waits["two"] == "2 nodes of 'cpu' are booting (since 5 s, usually 60 s)"


@pytest.mark.parametrize("seen", [(cores(3), ""), (cores(4), "other")])
def test_group_whose_observed_nodes_do_not_suit_a_gang_is_not_launched(seen: tuple[Resources, str]) -> None:
    world = World(group(each=4))
    world.memory = FleetMemory({"cpu": GroupMemory(seen=seen)})
    world.waiting["one"] = gang(1, each=4)
    assert world.run_pass() == []


def test_restarted_service_counts_booting_nodes_and_ends_overdue_ones() -> None:
    world = World(group())
    world.waiting["one"] = gang(8)
    world.run_pass()
    world.memory = FleetMemory()
    assert world.run_pass() == []
    late = World(group(boot_limit_s=100.0))
    late.fleet["old"] = FleetNode("old", "cpu", NodePhase.BOOTING, late.now - 5000.0)
    late.waiting["one"] = gang(4)
    late.boots_s = None
    assert late.run_pass() == []  # it is given a while, for all that its group allows it
    assert late.run_passes(30)[0] == "end old"


def test_lost_node_is_replaced_at_once_and_terminated_after_its_boot_limit() -> None:
    world = World(group(boot_limit_s=100.0))
    world.waiting["one"] = gang(4)
    world.run_passes(15)
    world.end("one")
    world.boots_s = None
    world.nodes.remove_capacity("cpu-1")
    world.fleet["cpu-1"] = replace(world.fleet["cpu-1"], phase=NodePhase.BOOTING, name="")
    world.waiting["two"] = gang(4)
    assert world.run_pass() == ["+1 cpu"]
    assert world.run_passes(20)[0] == "end cpu-1"


def test_admission_counts_nodes_that_could_be_added() -> None:
    view = World(group(most=3, boot_limit_s=180.0)).decided().view
    requested = GangRequest("one", gang(9))
    nodes = Nodes()
    assert reasons.why_impossible(requested, nodes, Queue()) and not reasons.why_impossible(
        requested, nodes, Queue(), view.addable
    )
    assert growth_text(requested.gang, nodes, view.addable) == "waits for 3 more nodes of group 'cpu', about 3 min"
    nodes.set_node("a", cores(9))
    assert growth_text(requested.gang, nodes, view.addable) == ""
    assert "room for 21 such slots" in reasons.why_impossible(GangRequest("x", gang(30)), nodes, Queue(), view.addable)


@pytest.mark.parametrize("wrong", [{"least": 5}, {"most": -1}, {"least": -1}, {"each": 0}])
def test_invalid_node_group_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ArgumentError, match="group 'cpu'"):
        group(**wrong)


def test_slots_released_by_the_time_a_node_would_boot_are_waited_for() -> None:
    world = World(group(boot_limit_s=100.0), static={"a": 4})
    world.waiting["one"] = gang(4)
    world.run_pass()
    world.waiting["two"] = gang(4)
    world.ends_s["one"] = world.now + 5.0 + 100.0  # the next decision is made 5 s from now
    assert world.run_pass() == []
    world.ends_s["one"] = world.now + 5.0 + 100.1
    assert world.run_pass() == ["+1 cpu"]


def test_quickest_booting_group_decides_which_job_ends_are_waited_for() -> None:
    groups = group("quick", boot_limit_s=100.0), group("slow", boot_limit_s=1000.0)
    world = World(*groups, static={"a": 4})
    world.waiting["one"] = gang(4)
    world.run_pass()
    world.waiting["two"] = gang(4)
    world.ends_s["one"] = world.now + 500.0
    assert world.run_pass() == ["+1 quick"]


def test_job_end_beyond_the_boot_limit_is_not_counted_as_free_in_a_full_group() -> None:
    world = World(group(most=1, idle_s=50.0), static={"a": 4})
    world.waiting |= {"one": gang(4), "two": gang(4)}
    world.run_passes(15)
    world.end("two")
    world.ends_s["one"] = world.now + 10_000.0
    while "drain cpu-1" not in world.run_pass():
        pass
    world.waiting["three"] = gang(4)
    assert world.run_pass() == ["recall cpu-1"]  # the end of `one` is far: the node that drains is needed


def test_closed_node_frees_a_place_in_its_group() -> None:
    world = World(group(most=3), static={"a": 4})
    world.waiting["one"] = gang(8)
    world.run_passes(15)
    addable = {kind.group: kind.count for kind in world.decided().view.addable}
    assert addable == {"cpu": 2}  # `one` uses the 4 cores of `a` and one node of the group
    world.fleet["cpu-1"] = replace(world.fleet["cpu-1"], is_warned=True)
    assert "cpu-1" in world.decided().view.closed
    assert {kind.group: kind.count for kind in world.decided().view.addable} == {"cpu": 3}


def test_recalled_node_is_not_closed() -> None:
    world = World(group(idle_s=50.0))
    world.waiting["one"] = gang(4)
    world.run_passes(15)
    world.end("one")
    before = world.decided()
    while not before.view.closed:
        world.carry_out(before)
        world.now += 5.0
        before = world.decided()
    # The decision that drains a node counts its place in the group as free already.
    assert before.view.closed == {"cpu-1"} and [kind.count for kind in before.view.addable] == [4]
    assert world.carry_out(before) == ["drain cpu-1"]
    assert world.decided().view.closed == {"cpu-1"}
    world.waiting["two"] = gang(4)
    assert world.decided().view.closed == frozenset()


def test_node_is_drained_exactly_when_its_idle_time_is_reached() -> None:
    world = World(group(idle_s=50.0))
    world.waiting["one"] = gang(4)
    world.run_passes(15)
    world.end("one")
    world.run_pass()  # sees the node without work for the first time
    assert world.run_pass(49.5) == []
    assert world.run_pass(0.5) == ["drain cpu-1"]


def test_group_below_its_minimum_never_grows_above_its_maximum() -> None:
    world = World(group(least=3, most=3, idle_s=50.0))
    assert world.run_pass() == ["+3 cpu"]
    world.run_passes(15)
    for node in ("cpu-1", "cpu-2"):  # they are about to be taken away, and still count
        world.fleet[node] = replace(world.fleet[node], is_warned=True)
    assert world.carry_out(world.decided()) == ["drain cpu-1", "drain cpu-2"]


def test_gang_larger_than_its_group_does_not_retain_idle_nodes() -> None:
    world = World(group(most=2, idle_s=50.0))
    world.waiting["one"] = gang(4)
    world.run_passes(15)
    world.end("one")
    world.waiting["huge"] = gang(12)  # three nodes, and the group has at most two
    actions = world.run_passes(30)
    assert actions[0] == "drain cpu-1"


def test_node_idle_for_longest_is_drained_first() -> None:
    world = World(group(least=1, idle_s=50.0))
    world.waiting |= {"one": gang(4), "two": gang(4)}
    world.run_passes(15)
    where = {job: next(iter(placement[0])) for job, (_, placement) in world.running.items()}
    last, first = sorted(where, key=lambda job: where[job])  # the order of the ids is not that of the idle times
    world.end(first)
    world.run_pass()
    world.end(last)
    world.run_pass()
    assert world.run_pass(200.0) == [f"drain {where[first]}"]  # both have been idle for long enough


def test_growth_names_the_cheapest_nodes_of_every_group_a_job_needs() -> None:
    gpu = replace(group("gpu", label="gpu"), capacity=Resources(2, 8, 1 << 14), price=9.0)
    groups = group("large", each=8, price=3.0), group("small", each=2, price=1.0), gpu
    addable = World(*groups).decided().view.addable
    nodes = Nodes()
    nodes.set_node("a", cores(1))
    assert growth_text(gang(1), nodes, addable) == ""
    assert growth_text(gang(2), nodes, addable).startswith("waits for 1 more node of group 'small'")
    workers = SlotGroup("workers", 2, Resources(gpus=1, cores=1), label="gpu")
    driver = SlotGroup("driver", 1, cores(2), is_driver=True)
    first, second = growth_text(GangShape((driver, workers)), nodes, addable).split("; ")
    assert "1 more node of group 'small'" in first and "1 more node of group 'gpu'" in second
    assert growth_text(gang(99, each=8), nodes, addable) == ""  # no number of nodes that may be added would do


def test_each_action_names_its_jobs_or_its_reason() -> None:
    world = World(group(idle_s=150.0), group("gpu", label="gpu", boot_limit_s=100.0), static={"a": 2})
    world.waiting |= {"fits": gang(2), "one": gang(3), "two": gang(3), "labelled": gang(1, label="gpu")}
    world.start()
    assert world.decided().actions == (LaunchNodes("cpu", 2, ("one", "two")), LaunchNodes("gpu", 1, ("labelled",)))
    world.boots_s = None
    world.run_pass(), world.run_pass()
    world.fleet["gpu-3"] = replace(world.fleet["gpu-3"], launched_s=0.0)
    world.now += 100.0
    assert world.decided().actions[0] == TerminateNode(world.seen()[2], "the node did not start in time")
    world.boots_s = 10.0
    world.waiting.pop("labelled")
    world.run_passes(3)
    for job in ("one", "two"):
        world.end(job)
    world.run_pass()
    world.fleet["cpu-2"] = replace(world.fleet["cpu-2"], is_warned=True)
    world.now += 150.0
    cpu1, cpu2 = (next(node for node in world.seen() if node.id == name) for name in ("cpu-1", "cpu-2"))
    decision = world.decided()
    assert [action for action in decision.actions if isinstance(action, DrainNode)] == [
        DrainNode(cpu2, "the node will be removed"),
        DrainNode(cpu1, "idle for 2 min"),
    ]
    world.carry_out(decision)
    assert world.decided().actions[:2] == tuple(
        TerminateNode(replace(node, phase=NodePhase.DRAINING), "no container runs on the node") for node in (cpu1, cpu2)
    )


def test_backoff_of_a_group_is_shown_only_to_jobs_that_need_its_label() -> None:
    world = World(group("cpu"), group("gpu", label="gpu"), group("fast", label="gpu"))
    resting = GroupMemory(failures=1, rests_until_s=world.now + 40.0)
    world.memory = FleetMemory({"gpu": resting, "fast": replace(resting, failures=3)})
    world.waiting |= {"labelled": gang(1, label="gpu"), "plain": gang(99)}
    decision = world.decided()
    assert decision.actions == () and decision.view.waits == {
        "labelled": "requested nodes of 'gpu' did not start; they are requested again in 40 s;"
        " requested nodes of 'fast' did not start, 3 times in a row; they are requested again in 40 s"
    }
    world.now += 39.9
    assert world.decided().actions == ()
    world.now += 0.2
    assert world.decided().actions == (LaunchNodes("gpu", 1, ("labelled",)),)


def test_wait_text_counts_the_nodes_for_this_job_in_every_group() -> None:
    world = World(group("small", each=2, most=2), group("large", each=8, price=9.0), boots_s=None)
    world.waiting["one"] = gang(1, each=2)
    world.run_pass()
    world.now += 30.0
    world.waiting |= {"two": gang(2, each=2), "three": gang(1, each=8)}
    assert world.decided().view.waits == {
        "one": "1 node of 'small' is booting (since 30 s, at most 10 min)",
        "two": "waits for 1 more node of group 'large', about 10 min",
        "three": "waits for 1 more node of group 'large', about 10 min",
    }
    assert world.decided().actions == (LaunchNodes("large", 2, ("two", "three")),)
    world.waiting.pop("one")
    assert world.decided().view.waits["two"] == (
        "1 node of 'small' is booting (since 30 s, at most 10 min);"
        " waits for 1 more node of group 'small', about 10 min"
    )


def test_booting_nodes_are_shown_with_the_time_of_their_oldest_launch() -> None:
    world = World(group(), boots_s=None)
    world.waiting["one"] = gang(8)
    world.run_pass()
    world.fleet["cpu-2"] = replace(world.fleet["cpu-2"], launched_s=world.now + 7.0)  # their clock is ahead
    world.now += 5.0
    assert world.decided().view.waits["one"] == "2 nodes of 'cpu' are booting (since 5 s, at most 10 min)"
    for node in ("cpu-1", "cpu-2"):
        world.fleet[node] = replace(world.fleet[node], launched_s=world.now + 7.0)
    assert "since 0 s" in world.decided().view.waits["one"]


def test_job_that_fits_has_no_wait_text_and_the_view_lists_all_addable_nodes() -> None:
    gpu = group("gpu", label="gpu", most=2, price=3.0)
    world = World(group(most=3), gpu, static={"a": 4}, boots_s=20.0)
    world.memory = FleetMemory({"gpu": GroupMemory((70.0,), seen=(cores(5), "gpu"))})
    world.waiting["fits"] = gang(4)
    view = world.decided().view
    assert view.waits == {} and view.closed == frozenset() and view.problem == ""
    assert view.addable == (
        reasons.NodeKind(cores(4), 3, "", "cpu", 1.0, 600.0),
        reasons.NodeKind(cores(5), 2, "gpu", "gpu", 3.0, 70.0),
    )


def test_nodes_of_unknown_groups_are_left_alone() -> None:
    world = World(group(idle_s=0.0))
    foreign = FleetNode("x", "other", NodePhase.DRAINING, 0.0, "x")
    for phase in NodePhase:
        fleet = [replace(foreign, phase=phase, is_warned=True)]
        decision = decide_scaling(world.memory, world.groups, world.demand(), fleet, world.now)
        assert decision.actions == () and decision.view.closed == frozenset()


def test_ending_node_is_closed_and_counts_in_its_group_until_it_has_ended() -> None:
    world = World(group(most=1))
    world.fleet["cpu-9"] = FleetNode("cpu-9", "cpu", NodePhase.ENDING, world.now, "cpu-9", cores(4))
    world.nodes.set_node("cpu-9", cores(4))
    world.waiting["one"] = gang(8)
    assert world.decided().actions == () and world.decided().view.closed == {"cpu-9"}
    world.waiting = {"one": gang(4)}
    assert world.decided().actions == ()  # nothing may be added, and nothing is placed on it
    del world.fleet["cpu-9"]
    world.nodes.remove_capacity("cpu-9")
    assert world.decided().actions == (LaunchNodes("cpu", 1, ("one",)),)


def test_warned_booting_node_is_not_waited_for() -> None:
    world = World(group(), boots_s=None)
    world.waiting["one"] = gang(4)
    world.run_pass()
    world.fleet["cpu-1"] = replace(world.fleet["cpu-1"], is_warned=True)
    decision = world.decided()
    assert decision.actions == (
        DrainNode(world.seen()[0], "the node will be removed"),
        LaunchNodes("cpu", 1, ("one",)),
    )
    assert decision.view.closed == frozenset()  # it has no name yet


def test_idle_time_starts_at_the_first_poll_without_work_and_restarts_after_work() -> None:
    world = World(group(least=1, idle_s=100.0), boots_s=5.0)
    world.run_passes(3)
    since = world.memory.idle_s["cpu-1"]
    world.run_pass(7.0)
    assert world.memory.idle_s == {"cpu-1": since} and since < world.now - 7.0
    world.waiting["one"] = gang(4)
    world.run_pass(), world.end("one"), world.run_pass()
    assert world.memory.idle_s == {"cpu-1": world.now}


@pytest.mark.parametrize(
    ("waits", "idles"),
    [
        (gang(12), False),  # it could run once there is room for all of it
        (gang(12, label="gpu"), True),
        (gang(1, each=5), True),
        (gang(99), True),  # never, however many are added
    ],
)
def test_idle_node_is_retained_only_for_gangs_that_could_run_on_it(waits: GangShape, idles: bool) -> None:
    world = World(group(most=2, idle_s=100.0), static={"a": 4}, boots_s=5.0)
    world.waiting |= {"x": gang(4), "y": gang(4), "z": gang(4)}
    world.run_passes(4)
    on_cpu = next(job for job, (_, placement) in world.running.items() if "cpu-1" in placement[0])
    world.end(on_cpu)
    world.waiting["waits"] = waits
    world.run_pass()
    assert set(world.memory.idle_s) == ({"cpu-1"} if idles else set())


def test_growth_counts_only_nodes_that_do_not_exist_yet() -> None:
    addable = World(group(most=2)).decided().view.addable
    nodes = Nodes()
    nodes.set_node("a", cores(9))
    assert growth_text(gang(1), nodes, addable) == ""  # a new one would be the tighter one
    assert growth_text(gang(10), nodes, addable) == "waits for 1 more node of group 'cpu', about 10 min"
    nodes.promise(gang(9), ({"a": 9},))
    assert growth_text(gang(9), nodes, addable) == ""  # as if nothing ran


def test_growth_lists_groups_in_configured_order_regardless_of_price() -> None:
    dear, cheap = group("dear", each=8, price=9.0, most=1), group("cheap", each=2, price=1.0, most=2)
    addable = World(dear, cheap).decided().view.addable
    assert growth_text(gang(12), Nodes(), addable) == (
        "waits for 1 more node of group 'dear', about 10 min; waits for 2 more nodes of group 'cheap', about 10 min"
    )
    assert growth_text(gang(4), Nodes(), addable) == "waits for 2 more nodes of group 'cheap', about 10 min"


def test_booting_node_counts_with_the_shape_observed_in_its_group() -> None:
    world = World(group(each=4), boots_s=None)
    world.memory = FleetMemory({"cpu": GroupMemory(seen=(cores(2), ""))})
    world.waiting["one"] = gang(2)
    assert world.run_pass() == ["+1 cpu"]
    world.waiting["two"] = gang(2)
    assert world.run_pass() == ["+1 cpu"]


@pytest.mark.parametrize(("ends_in_s", "actions"), [(25.0, []), (25.1, ["+1 cpu"])])
def test_job_ends_waited_for_depend_on_observed_boot_times(ends_in_s: float, actions: list[str]) -> None:
    world = World(group(boot_limit_s=100.0), static={"a": 4})
    world.waiting["one"] = gang(4)
    world.run_pass()
    world.memory = FleetMemory({"cpu": GroupMemory((20.0,))})
    world.waiting["two"] = gang(4)
    world.ends_s["one"] = world.now + ends_in_s  # the next decision is made 5 s from now
    assert world.run_pass() == actions
