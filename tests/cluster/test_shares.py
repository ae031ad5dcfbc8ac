"""Tests of a program's slots among its runs: order, minimum of each, never more than exist."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsml.cluster.gang.pool import SlotDemand, shares, slot_demand
from hopsml.cluster.shared.spec import ElasticGroup, FixedGroup, IndependentGroup

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("slots", "claims", "found"),
    [
        (4, [], []),
        (4, [(1, 8)], [4]),
        (4, [(1, 2)], [2]),
        (4, [(1, 8), (1, 8)], [3, 1]),  # the one that came later can begin
        (4, [(1, 3), (2, 2)], [2, 2]),
        (4, [(3, 3), (2, 2), (1, 4)], [3, 2, 1]),  # the second waits for its two, and nobody for it
        (2, [(0, 0), (2, 2)], [0, 2]),
    ],
)
def test_each_gets_its_fewest_and_the_first_the_rest(
    slots: int, claims: list[tuple[int, int]], found: list[int]
) -> None:
    assert shares(slots, [SlotDemand(*one) for one in claims]) == found


@given(st.integers(1, 12), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=6))
def test_never_more_than_there_are_and_none_left_that_somebody_could_use(
    slots: int, sizes: list[tuple[int, int]]
) -> None:
    claims = [SlotDemand(fewest, fewest + more) for fewest, more in sizes]
    found = shares(slots, claims)
    assert all(one.fewest <= part <= one.most for one, part in zip(claims, found, strict=True))
    left, waits = slots, []
    for number, one in enumerate(claims):
        if one.fewest <= left:
            left -= one.fewest
        else:
            waits.append(number)
    used = sum(part for number, part in enumerate(found) if number not in waits)
    assert used <= slots and all(found[number] == claims[number].fewest for number in waits)
    wishing = any(
        part < one.most for number, (one, part) in enumerate(zip(claims, found, strict=True)) if number not in waits
    )
    assert used == slots or not wishing


def test_what_a_group_cannot_do_without() -> None:
    assert slot_demand(ElasticGroup(size=8, min_size=2), 6) == SlotDemand(2, 6)
    assert slot_demand(ElasticGroup(size=8, min_size=2), 1) == SlotDemand(1, 1)
    assert slot_demand(FixedGroup(size=3), 3) == SlotDemand(3, 3)
    assert slot_demand(IndependentGroup(size=5), 5) == SlotDemand(1, 5)
    assert slot_demand(IndependentGroup(size=0), 0) == SlotDemand(0, 0)
