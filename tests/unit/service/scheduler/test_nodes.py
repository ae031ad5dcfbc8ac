"""Tests of nodes: capacity, promised and used resources, and placement of a gang's slots."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from hopsml.service.scheduler.nodes import ROOM, NodeAccount, Nodes
from hopsml.service.scheduler.resources import NOTHING, GangShape, Placement, Resources, SlotGroup

pytestmark = pytest.mark.fast

GPU, LARGE = Resources(gpus=1), Resources(gpus=4, cores=8, memory_mib=4096)


def nodes_of(**capacities: Resources) -> Nodes:
    nodes = Nodes()
    for name, capacity in capacities.items():
        nodes.set_node(name, capacity)
    return nodes


def slots(count: int, each: Resources = GPU, least: int = 0, label: str = "", name: str = "w") -> SlotGroup:
    return SlotGroup(name, count, each, least, label)


def shape(*parts: SlotGroup) -> GangShape:
    return GangShape(parts)


class TestAccounts:
    def test_new_node_is_open_and_entirely_free(self):
        nodes = Nodes()
        assert (nodes.capacity(), nodes.free(), nodes.has_labels()) == (NOTHING, NOTHING, False)
        nodes.set_node("a", LARGE, "v100")
        assert nodes.of("a") == NodeAccount("v100", LARGE, LARGE, NOTHING, True)
        assert nodes.is_open("a") and not nodes.is_open("b") and nodes.has_labels()
        assert not nodes.in_use("a") and not nodes.in_use("b")

    def test_each_resource_is_promised_and_released_separately(self):
        nodes, each = nodes_of(a=LARGE), Resources(gpus=1, cores=2, memory_mib=512)
        gang = shape(slots(3, each))
        nodes.promise(gang, ({"a": 3},))
        assert nodes.of("a").free == nodes.free() == Resources(gpus=1, cores=2, memory_mib=2560)
        assert nodes.in_use("a")
        nodes.forget(gang, ({"a": 3},))
        assert nodes.of("a").free == nodes.free() == LARGE and not nodes.in_use("a")

    def test_used_slots_are_counted_separately_from_promised_ones(self):
        nodes, gang = nodes_of(a=LARGE), shape(slots(3))
        nodes.occupy(gang, ({"a": 3},))
        assert nodes.free() == LARGE and nodes.in_use("a")
        assert nodes.is_idle(shape(slots(1)), ({"a": 1},)) and not nodes.is_idle(shape(slots(2)), ({"a": 2},))
        nodes.vacate(gang, ({"a": 3},))
        assert nodes.is_idle(shape(slots(4)), ({"a": 4},)) and not nodes.in_use("a")

    def test_gang_is_idle_only_if_all_its_parts_fit_together(self):
        nodes, core = nodes_of(a=Resources(cores=3), b=Resources(cores=1)), Resources(cores=1)
        gang = shape(slots(2, core), slots(2, core, name="driver"))
        assert nodes.is_idle(gang, ({"a": 2}, {"a": 1, "b": 1}))
        assert not nodes.is_idle(gang, ({"a": 2}, {"a": 2}))
        assert not nodes.is_idle(gang, ({"b": 2}, {"a": 2}))

    def test_resized_node_retains_its_promised_and_used_slots(self):
        nodes, gang = nodes_of(a=LARGE), shape(slots(3))
        nodes.promise(gang, ({"a": 3},))
        nodes.occupy(gang, ({"a": 3},))
        nodes.set_node("a", Resources(gpus=6, cores=8, memory_mib=4096))
        assert nodes.free().gpus == 3 and nodes.capacity().gpus == 6
        assert nodes.is_idle(gang, ({"a": 3},)) and not nodes.is_idle(shape(slots(4)), ({"a": 4},))
        nodes.set_node("a", Resources(gpus=2, cores=8, memory_mib=4096))
        assert nodes.of("a").free.gpus == nodes.free().gpus == 0  # one too many is promised: not below 0
        nodes.set_node("b", Resources(gpus=5))
        assert nodes.free().gpus == 5  # and it is not taken from another node

    def test_usage_of_other_tenants_is_replaced_by_the_newest_figure(self):
        nodes = nodes_of(a=LARGE)
        for used in (Resources(gpus=3), Resources(gpus=1, cores=2), Resources(gpus=1, cores=2)):
            nodes.others("a", used)
            assert nodes.of("a").others == used and nodes.of("a").free == nodes.free() == LARGE.minus(used)
            assert nodes.is_idle(shape(slots(4 - used.gpus)), ({"a": 4 - used.gpus},))
            assert not nodes.is_idle(shape(slots(4)), ({"a": 4},))
        nodes.others("a", NOTHING)
        assert nodes.free() == LARGE and not nodes.in_use("a")
        nodes.others("nobody", Resources(gpus=1))
        assert nodes.capacity() == LARGE

    def test_closed_node_takes_no_gangs_until_it_is_set_again(self):
        nodes = nodes_of(a=LARGE, b=Resources(gpus=1))
        nodes.close("a"), nodes.close("a"), nodes.close("nobody")
        assert nodes.capacity() == nodes.free() == Resources(gpus=1)
        assert not nodes.is_open("a") and not nodes.is_open("nobody") and not nodes.of("a").is_open
        assert nodes.of("a").capacity == LARGE
        assert nodes.place(shape(slots(2))) is None and nodes.slots_by_node(slots(1)) == {"b": 1}
        nodes.set_node("a", LARGE)
        assert nodes.is_open("a") and nodes.place(shape(slots(2))) == ({"a": 2},) and nodes.free().gpus == 5
        nodes.set_node("a", LARGE, is_open=False)
        assert not nodes.is_open("a") and nodes.free().gpus == 1
        nodes.set_node("c", LARGE, is_open=False)
        assert nodes.place(shape(slots(2))) is None and nodes.of("c").capacity == LARGE

    def test_removed_node_has_no_capacity_and_retains_its_label(self):
        nodes = Nodes()
        nodes.set_node("a", LARGE, "v100")
        nodes.others("a", Resources(gpus=1))
        nodes.remove_capacity("a"), nodes.remove_capacity("nobody")
        assert nodes.of("a") == NodeAccount("v100", NOTHING, NOTHING, NOTHING, False) and list(nodes.rows) == ["a"]
        nodes.set_node("a", LARGE, "v100")
        assert nodes.of("a") == NodeAccount("v100", LARGE, LARGE, NOTHING, True) and not nodes.in_use("a")

    def test_node_label_may_change(self):
        nodes = nodes_of(a=LARGE)
        gang = shape(slots(1, label="v100"))
        assert nodes.place(gang) is None
        nodes.set_node("a", LARGE, "v100")
        assert nodes.place(gang) == ({"a": 1},) and nodes.place(shape(slots(1))) is None
        assert nodes.of("a").label == "v100"

    def test_capacity_is_summed_over_all_nodes_or_one_label(self):
        nodes = nodes_of(a=LARGE)
        nodes.set_node("b", Resources(gpus=1), "v100")
        nodes.set_node("c", Resources(gpus=2, memory_mib=7), "v100")
        assert nodes.capacity("v100") == Resources(gpus=3, memory_mib=7)
        assert nodes.capacity("") == LARGE and nodes.capacity("t4") == NOTHING
        assert nodes.capacity() == LARGE.plus(Resources(gpus=3, memory_mib=7))

    @pytest.mark.parametrize("count", [1, ROOM, ROOM + 1, 3 * ROOM + 1])
    def test_number_of_nodes_may_exceed_the_initial_rows(self, count: int):
        nodes = Nodes()
        for number in range(count):
            nodes.set_node(f"n{number}", Resources(gpus=number + 1))
            nodes.others(f"n{number}", Resources(gpus=1))
        assert nodes.capacity().gpus == count * (count + 1) // 2 and nodes.free().gpus == count * (count - 1) // 2
        assert nodes.of("n0").capacity.gpus == 1 and nodes.of(f"n{count - 1}").others.gpus == 1
        assert all(not nodes.is_idle(shape(slots(n + 1)), ({f"n{n}": n + 1},)) for n in range(count))
        assert len(nodes._capacity) < 8 * ROOM  # twice what is needed at most, and a few

    def test_slots_by_node_counts_free_slots_on_open_nodes(self):
        nodes = nodes_of(a=LARGE, b=Resources(gpus=2, cores=9), c=Resources(cores=9), d=LARGE)
        nodes.promise(shape(slots(1)), ({"a": 1},))
        nodes.close("d")
        assert nodes.slots_by_node(slots(1)) == {"a": 3, "b": 2}
        assert nodes.slots_by_node(slots(1, Resources(gpus=1, cores=4))) == {"a": 2, "b": 2}
        assert nodes.slots_by_node(slots(1, Resources(gpus=1, cores=5))) == {"a": 1, "b": 1}
        assert nodes.slots_by_node(slots(1, Resources(memory_mib=1024))) == {"a": 4}
        assert nodes.slots_by_node(slots(1, label="v100")) == {}

    def test_largest_node_is_ordered_by_gpus_then_cores_then_memory(self):
        nodes = nodes_of(a=Resources(1, 9, 9), b=Resources(2, 1, 5), c=Resources(2, 2, 1), d=Resources(2, 2, 3))
        assert nodes.largest_node("") == Resources(2, 2, 3)
        nodes.close("d")
        assert nodes.largest_node("") == Resources(2, 2, 1)
        assert nodes.largest_node("v100") == NOTHING

    def test_emptied_copy_has_the_open_nodes_without_any_usage(self):
        nodes = nodes_of(a=LARGE, b=LARGE)
        nodes.set_node("c", Resources(gpus=1), "v100")
        nodes.promise(shape(slots(4)), ({"a": 4},))
        nodes.others("a", Resources(cores=1))
        nodes.close("b")
        empty = nodes.without_usage()
        assert {name: (empty.of(name).label, empty.of(name).free) for name in empty.rows} == {
            "a": ("", LARGE),
            "c": ("v100", Resources(gpus=1)),
        }

    def test_clone_is_equal_and_independent(self):
        nodes, gang = nodes_of(a=LARGE, b=LARGE), shape(slots(2))
        nodes.set_node("c", Resources(gpus=1), "v100")
        nodes.promise(gang, ({"a": 2},)), nodes.occupy(gang, ({"a": 2},))
        nodes.others("a", Resources(gpus=1)), nodes.close("b")
        same = nodes.clone()
        accounts = {name: nodes.of(name) for name in nodes.rows}
        assert {name: same.of(name) for name in same.rows} == accounts and list(same.rows) == ["a", "b", "c"]
        assert same.in_use("a") and same.free() == nodes.free() and same.capacity() == nodes.capacity()
        assert not same.is_idle(gang, ({"a": 2},)) and same.place(shape(slots(1))) == ({"a": 1},)
        same.promise(shape(slots(1)), ({"a": 1},)), same.occupy(shape(slots(1)), ({"a": 1},))
        (
            same.set_node("d", LARGE),
            same.set_node("b", Resources(gpus=7), "t4"),
            same.others("c", Resources(gpus=1)),
            same.remove_capacity("a"),
        )
        assert {name: nodes.of(name) for name in nodes.rows} == accounts and list(nodes.rows) == ["a", "b", "c"]
        assert nodes.is_idle(shape(slots(1)), ({"a": 1},)) and not nodes.is_idle(gang, ({"a": 2},))


class TestPlace:
    """Placements are deterministic: one of several possible ones is preferred."""

    @pytest.mark.parametrize(
        ("what", "where"),
        [
            (slots(1), {"c": 1}),  # the node with the fewest free GPUs
            (slots(2), {"b": 2}),  # the fullest that has room for both
            (slots(4), {"a": 4}),
            (slots(5), {"a": 4, "c": 1}),  # on few nodes; and the rest where it leaves least
            (slots(6), {"a": 4, "b": 2}),
            (slots(7), {"a": 4, "b": 2, "c": 1}),
            (slots(8), None),
            (slots(8, least=7), {"a": 4, "b": 2, "c": 1}),
            (slots(9, least=8), None),
            (slots(1, Resources(gpus=2)), {"b": 1}),
            (slots(3, Resources(gpus=2)), {"a": 2, "b": 1}),
            (slots(4, Resources(gpus=2)), None),
            (slots(1, Resources(gpus=5)), None),
        ],
    )
    def test_slot_group_is_placed_on_few_nodes_leaving_the_least_free(self, what, where):
        nodes = nodes_of(a=Resources(gpus=4), b=Resources(gpus=2), c=Resources(gpus=1))
        assert nodes.place(shape(what)) == (None if where is None else (where,))

    def test_least_placement_takes_the_minimum_of_each_elastic_part(self):
        nodes = nodes_of(a=Resources(gpus=4), b=Resources(gpus=2))
        assert nodes.place(shape(slots(6, least=2)), least=True) == ({"b": 2},)
        assert nodes.place(shape(slots(6, least=1)), least=True) == ({"b": 1},)
        two = shape(slots(4, least=2), slots(2, Resources(gpus=1), least=1, name="other"))
        assert nodes.place(two, least=True) == ({"b": 2}, {"a": 1})

    def test_minimum_of_all_parts_is_placed_before_any_part_grows(self):
        nodes = nodes_of(a=Resources(gpus=4))
        first, second = slots(4, least=1), slots(3, least=2, name="other")
        assert nodes.place(shape(first, second)) == ({"a": 1}, {"a": 3})
        assert nodes.place(shape(second, first)) == ({"a": 3}, {"a": 1})
        assert nodes.place(shape(slots(3, least=1), slots(2, name="other"))) == ({"a": 2}, {"a": 2})
        assert nodes.place(shape(slots(3, least=1), slots(4, name="other"))) is None
        nodes.set_node("b", Resources(gpus=2))
        assert nodes.place(shape(slots(4, least=1), slots(2, least=1, name="other"))) == (
            {"b": 1, "a": 3},
            {"b": 1, "a": 1},
        )

    @pytest.mark.parametrize("order", list(itertools.permutations(range(2))))
    @pytest.mark.parametrize(
        ("hard", "easy"),
        [
            (slots(1, Resources(gpus=2, cores=1)), slots(1, Resources(gpus=1, cores=9))),
            (slots(2, Resources(gpus=1, cores=1)), slots(1, Resources(gpus=1, cores=9, memory_mib=9))),
            (slots(1, Resources(gpus=1, memory_mib=2)), slots(1, Resources(gpus=1, memory_mib=1, cores=9))),
            (slots(1, Resources(gpus=1, cores=2)), slots(1, Resources(gpus=1, cores=1))),
        ],
    )
    def test_part_that_is_hardest_to_place_is_placed_first(self, hard, easy, order):
        """Ordered by the GPUs of all slots, then memory and cores of one slot; each part fits on a separate node."""
        nodes = nodes_of(small=Resources(2, 9, 9), large=Resources(3, 9, 9))
        parts = (hard, SlotGroup("other", easy.count, easy.each))
        found = nodes.place(GangShape(tuple(parts[index] for index in order)))
        assert found is not None and found[order.index(0)] == {"small": hard.count}

    def test_parts_with_labels_are_placed_on_nodes_of_their_label(self):
        nodes = nodes_of(a=Resources(cores=4))
        nodes.set_node("b", Resources(gpus=4, cores=4), "v100")
        driver, workers = slots(1, Resources(cores=1), name="driver"), slots(3, label="v100")
        assert nodes.place(shape(driver, workers)) == ({"a": 1}, {"b": 3})
        assert nodes.place(shape(driver, slots(3, label="t4"))) is None
        assert nodes.place(shape(slots(3, label="t4"))) is None

    @pytest.mark.parametrize(
        ("free", "tightest"),
        [
            ([(2, 1, 1), (1, 9, 9)], "n1"),  # GPUs first
            ([(1, 3, 1), (1, 2, 9)], "n1"),  # then cores
            ([(1, 2, 3), (1, 2, 2)], "n1"),  # then memory
            ([(1, 2, 2), (1, 2, 2)], "n0"),  # of equals the first
            ([(1, 0xFFFF, 3), (1, 0xFFFE, 4)], "n1"),
            ([(2, 1, 1), (1, 1 << 17, 1)], "n1"),  # cores beyond the key's range do not count as GPUs
            ([(1, 2, 1), (1, 1, 1 << 33)], "n1"),  # nor does memory count as cores
            ([(1, 2, 0xFFFFFFFF), (1, 2, 0xFFFFFFFE)], "n1"),
        ],
    )
    def test_tightest_node_has_the_fewest_gpus_then_cores_then_memory(self, free, tightest):
        nodes = nodes_of(**{f"n{number}": Resources(*each) for number, each in enumerate(free)})
        assert nodes.place(shape(slots(1))) == ({tightest: 1},)

    @pytest.mark.parametrize("missing", [Resources(1, 2, 3), Resources(2, 1, 3), Resources(2, 2, 2)])
    def test_slot_needs_enough_of_each_resource_on_one_node(self, missing):
        each = Resources(2, 2, 3)
        for count in (1, 2):
            nodes = nodes_of(less=missing.times(count))
            assert nodes.place(shape(slots(count, each))) is None
            nodes.set_node("enough", each.times(count))
            assert nodes.place(shape(slots(count, each))) == ({"enough": count},)

    def test_slot_without_gpus_is_placed_on_a_node_without_gpus(self):
        nodes = nodes_of(a=Resources(gpus=1, cores=4), b=Resources(cores=8, memory_mib=8))
        assert nodes.place(shape(slots(1, Resources(cores=1)))) == ({"b": 1},)
        assert nodes.place(shape(slots(1, Resources(memory_mib=1)))) == ({"b": 1},)

    def test_overcommitted_node_takes_no_slots_and_does_not_reduce_others(self):
        nodes = nodes_of(a=Resources(gpus=4), b=Resources(gpus=3))
        nodes.others("a", Resources(gpus=6))
        assert nodes.slots_by_node(slots(1)) == {"b": 3}
        assert nodes.place(shape(slots(3))) == ({"b": 3},) and nodes.place(shape(slots(1))) == ({"b": 1},)
        assert nodes.of("a").free == NOTHING

    def test_placement_in_a_trial_state_does_not_change_the_nodes(self):
        nodes, gang = nodes_of(a=Resources(2, 4, 8)), shape(slots(2, Resources(1, 2, 4)))
        where: Placement = ({"a": 2},)
        trial = nodes.copy()
        nodes.add_placement(trial, gang, where, -1)
        assert np.array_equal(trial, nodes.copy() * 0)
        assert nodes.place(gang, trial) is None and nodes.place(gang) == where and nodes.free() == Resources(2, 4, 8)
        nodes.add_placement(trial, gang, where)
        assert np.array_equal(trial, nodes.copy()) and nodes.place(gang, trial) == where
        both = shape(slots(1), slots(1, Resources(cores=1), name="driver"))
        assert nodes.place(both, trial) == ({"a": 1}, {"a": 1})
        assert np.array_equal(trial, nodes.copy()) and nodes.free() == Resources(2, 4, 8)

    def test_could_take_ignores_promised_slots_but_not_other_tenants(self):
        nodes = nodes_of(a=Resources(gpus=4))
        nodes.promise(shape(slots(4)), ({"a": 4},))
        assert nodes.could_take(shape(slots(4))) and not nodes.could_take(shape(slots(5)))
        assert nodes.could_take(shape(slots(9, least=4)))
        nodes.others("a", Resources(gpus=1))
        assert nodes.could_take(shape(slots(3))) and not nodes.could_take(shape(slots(4)))
        nodes.close("a")
        assert not nodes.could_take(shape(slots(1)))
