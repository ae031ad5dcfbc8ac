"""The arithmetic of successive halving, against the tables of the papers."""

import pytest

from hopsml.errors import ArgumentError
from hopsml.search.bracket import Bracket, bracket_sizes
from hopsml.search.hyperband import Ladders
from hopsml.search.rungs import Rung, check_ladder, halvings, rung_steps

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("ladder", "steps"),
    [
        ((1, 64, 4), (1, 4, 16, 64)),
        ((1, 100, 4), (1, 6, 25, 100)),
        ((1, 10, 2), (1, 2, 5, 10)),  # not 8 and 10: nothing is learned between them
        ((3, 10, 2), (3, 10)),
        ((2, 27, 3), (2, 9, 27)),
        ((3, 4, 2), (4,)),
        ((3, 3, 2), (3,)),
        ((1, 9, 3), (1, 3, 9)),
    ],
)
def test_rungs_end_at_max_step_each_a_factor_below_the_next(ladder, steps):
    assert rung_steps(*ladder) == steps


def test_brackets_are_those_of_the_hyperband_paper():
    """Table 1 of Li et al. 2018: R = 81, eta = 3."""
    ladders = Ladders(1, 81, 3, count=5)
    assert [(ladders.sizes(b), ladders.steps(b)) for b in range(5)] == [
        ((81, 27, 9, 3, 1), (1, 3, 9, 27, 81)),
        ((34, 11, 3, 1), (3, 9, 27, 81)),
        ((15, 5, 1), (9, 27, 81)),
        ((8, 2), (27, 81)),
        ((5,), (81,)),
    ]
    assert ladders.configurations == 143 and ladders.trials == 121 + 49 + 21 + 10 + 5
    assert ladders.sizes(5) == ladders.sizes(0)  # and then again


def test_a_number_belongs_to_the_bracket_that_it_fills():
    ladders = Ladders(1, 81, 3)
    of = [ladders.bracket_of(number) for number in range(2 * 143)]
    assert of == sorted(of) and [of.count(b) for b in range(10)] == [81, 34, 15, 8, 5] * 2


@pytest.mark.parametrize(
    ("first", "last", "factor", "count"), [(1, 81, 3, 4), (1, 80, 3, 3), (2, 81, 3, 3), (7, 7, 2, 0)]
)
def test_halvings_are_counted_without_rounding_errors(first, last, factor, count):
    assert halvings(first, last, factor) == count


def test_sizes_are_rounded_up_exactly():
    assert bracket_sizes(2, 4, 3) == (15, 5, 1)  # 5 / 3 * 9 is a little more than 15 as floats


def test_among_equals_the_first_is_better():
    rung = Rung()
    for number in (7, 3, 5):
        rung.add(number, -1.0)
    rung.add(1, -2.0)
    assert rung.best(10) == [7, 3, 5, 1] and rung.rank(5) == 2
    rung.remove(3)
    assert Rung.restored(rung.state()).best(2) == [7, 5]


def test_nobody_waits_for_what_cannot_change_the_decision():
    bracket = Bracket([4, 2, 1])
    for member in range(4):
        bracket.join(member)
    assert bracket.arrive(0, 0.5) is None
    assert bracket.arrive(1, 0.7) is None
    assert bracket.arrive(2, 0.6) is None  # and 0 is out by this, but it waits already
    assert bracket.promote() == 1  # whatever 3 does
    assert bracket.promote() is None
    assert bracket.arrive(3, 0.1) is False
    assert bracket.promote() == 2
    assert not bracket.over


def test_who_leaves_makes_place_for_the_next():
    bracket = Bracket([3, 1])
    for member in range(3):
        bracket.join(member)
    assert bracket.arrive(0, 0.9) is None
    assert bracket.arrive(1, 0.1) is False
    bracket.leave(0)  # while it waited
    bracket.leave(2)  # before it came
    assert bracket.promote() is None and bracket.over


@pytest.mark.parametrize(
    "ladder", [(0, 9, 3), (1, 0, 3), (1, 9, 1), (10, 9, 3), (True, 9, 3), (1, 9.0, 3), (1, 9, "3"), (1.5, 9, 3)]
)
def test_impossible_ladders_are_refused_by_name(ladder):
    with pytest.raises(ArgumentError, match=r"first=|last=|factor="):
        check_ladder(*ladder, ("first", "last", "factor"))


def test_a_displaced_member_is_back_when_a_better_one_leaves():
    bracket = Bracket([5, 2])
    for member in range(5):
        bracket.join(member)
    assert [bracket.arrive(member, score) for member, score in ((0, 0.5), (1, 0.6), (2, 0.7))] == [None] * 3
    for member in (2, 3, 4):
        bracket.leave(member)
    assert [bracket.promote() for _ in range(3)] == [1, 0, None]
