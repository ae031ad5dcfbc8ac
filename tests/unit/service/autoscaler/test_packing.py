"""Tests of packing gangs on present, booting and possible nodes: fewest and cheapest new ones."""

from __future__ import annotations

from itertools import product

import pytest

from hopsml.service.autoscaler.decide import NodeOffer, Packing, cheapest_placement
from hopsml.service.scheduler.nodes import Nodes
from hopsml.service.scheduler.resources import Placement
from tests.unit.service.autoscaler.worlds import cores, gang

pytestmark = pytest.mark.fast


def packing_of(*, hidden: tuple[str, ...] = (), **sizes: int) -> Packing:
    packing = Packing(Nodes())
    for name, size in sizes.items():
        packing.add_node(name, cores(size), "", hidden=name in hidden)
    return packing


class TestPacking:
    def test_packing_does_not_change_its_source_nodes(self):
        nodes = Nodes()
        nodes.set_node("a", cores(4))
        packing = Packing(nodes)
        packing.occupy(gang(3), ({"a": 3},))
        packing.add_node("b", cores(9), "")
        packing.close("a")
        assert nodes.free() == cores(4) and list(nodes.rows) == ["a"] and nodes.is_open("a")

    def test_occupied_slots_are_not_free_until_they_are_released(self):
        packing = packing_of(a=4)
        packing.occupy(gang(3), ({"a": 3},))
        assert packing.place(gang(2)) is None and packing.place(gang(1)) == ({"a": 1},) and packing.taken == {"a"}
        packing.give_back(gang(3), ({"a": 3},))
        assert packing.place(gang(4)) == ({"a": 4},)

    def test_gang_is_not_placed_on_a_closed_node(self):
        packing = packing_of(a=4, b=2)
        packing.close("a")
        assert packing.place(gang(3)) is None and packing.place(gang(2)) == ({"b": 2},)

    def test_gang_is_placed_only_on_nodes_of_its_label(self):
        packing = Packing(Nodes())
        packing.add_node("a", cores(4), "gpu")
        assert packing.place(gang(1)) is None and packing.place(gang(1, label="gpu")) == ({"a": 1},)

    def test_hidden_node_is_used_only_if_named_or_already_taken(self):
        packing = packing_of(hidden=("b", "c"), a=1, b=4, c=4)
        assert packing.place(gang(2)) is None
        assert packing.place(gang(2), ["c"]) == ({"c": 2},) and packing.place(gang(9), ["b", "c"]) == (
            {"b": 4, "c": 4, "a": 1},
        )
        assert packing.place(gang(2)) is None
        packing.occupy(gang(2), ({"c": 2},))
        assert packing.place(gang(2)) == ({"c": 2},) and packing.place(gang(3)) == ({"c": 2, "a": 1},)
        assert packing.place(gang(4)) is None and packing.taken == {"c"}
        packing.occupy(gang(1), ({"a": 1},))
        assert packing.taken == {"a", "c"}

    def test_elastic_gang_is_placed_with_its_minimum(self):
        packing = packing_of(a=4)
        shape = gang(9)
        elastic = type(shape)((type(shape.parts[0])("w", 9, cores(1), least=2),))
        assert packing.place(elastic) == ({"a": 2},)


class TestCheapest:
    @staticmethod
    def place(
        slots: int, offers: dict[str, tuple[int, int, float]], *, there: int = 0, each: int = 1
    ) -> Placement | None:
        """Place a gang on offers, given as group -> (number of nodes, size, price)."""
        packing = packing_of(**({"there": there} if there else {}))
        found = []
        for group, (count, size, price) in offers.items():
            names = [f"{group}{number}" for number in range(count)]
            for name in names:
                packing.add_node(name, cores(size), "", hidden=True)
            found.append(NodeOffer(names, price))
        return cheapest_placement(packing, gang(slots, each), found)

    @pytest.mark.parametrize(
        ("slots", "offers", "there", "used"),
        [
            (4, {"a": (3, 4, 1.0)}, 0, {"a0"}),
            (5, {"a": (3, 4, 1.0)}, 0, {"a0", "a1"}),
            (12, {"a": (3, 4, 1.0)}, 0, {"a0", "a1", "a2"}),
            (5, {"a": (3, 4, 1.0)}, 1, {"a0", "there"}),
            (4, {"a": (3, 4, 1.0)}, 4, {"there"}),
            (4, {"a": (3, 4, 2.0), "b": (3, 4, 1.0)}, 0, {"b0"}),
            (4, {"a": (3, 4, 1.0), "b": (3, 4, 1.0)}, 0, {"a0"}),  # of equals the first
            (8, {"a": (4, 2, 1.0), "b": (1, 8, 3.0)}, 0, {"b0"}),
            (8, {"a": (4, 2, 1.0), "b": (1, 8, 4.0)}, 0, {"b0"}),  # as dear, and fewer nodes
            (8, {"a": (4, 2, 1.0), "b": (1, 8, 5.0)}, 0, {"a0", "a1", "a2", "a3"}),
            (10, {"a": (4, 2, 1.0), "b": (1, 8, 3.0)}, 0, {"a0", "b0"}),
            (4, {"a": (1, 2, 1.0), "b": (1, 2, 1.0), "c": (1, 4, 3.0)}, 0, {"a0", "b0"}),
        ],
    )
    def test_cheapest_placement_uses_the_fewest_and_cheapest_nodes(self, slots, offers, there, used):
        found = self.place(slots, offers, there=there)
        assert found is not None and set(found[0]) == used

    def test_no_placement_if_all_offered_nodes_do_not_suffice(self):
        assert self.place(13, {"a": (3, 4, 1.0)}) is None
        assert self.place(1, {"a": (3, 4, 1.0)}, each=5) is None
        assert self.place(1, {}) is None and self.place(1, {}, there=1) == ({"there": 1},)

    def test_free_of_charge_nodes_are_used_before_offered_ones(self):
        packing = packing_of(hidden=("back", "new"), back=4, new=4)
        offers = [NodeOffer(["new"], 1.0)]
        assert cheapest_placement(packing, gang(4), offers, ["back"]) == ({"back": 4},)
        assert cheapest_placement(packing, gang(5), offers, ["back"]) in (
            ({"back": 4, "new": 1},),
            ({"new": 4, "back": 1},),
        )
        assert cheapest_placement(packing, gang(4), [], ["back"]) == ({"back": 4},)
        assert cheapest_placement(packing, gang(9), offers, ["back"]) is None

    def test_cheapest_placement_costs_the_minimum_over_two_groups(self):
        for slots, price in product(range(1, 15), (1.0, 2.0, 2.5)):
            found = self.place(slots, {"a": (3, 2, 1.0), "b": (2, 4, price)})
            fits = [(x + y * price, x, y) for x in range(4) for y in range(3) if 2 * x + 4 * y >= slots]
            assert found is not None
            used = [sum(name.startswith(group) for name in found[0]) for group in "ab"]
            assert used[0] + used[1] * price == min(fits)[0], (slots, price, found)
