"""Tests of the arithmetic of successive halving against the tables of the papers."""

import json

import pytest

from hopsml.errors import ArgumentError
from hopsml.search.algorithms.asha import Rung, check_ladder, halvings, rung_steps
from hopsml.search.algorithms.hyperband import Bracket, Ladders, bracket_sizes

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


def test_hyperband_brackets_equal_table_1_of_the_paper():
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


def test_trial_number_determines_its_bracket():
    ladders = Ladders(1, 81, 3)
    of = [ladders.bracket_of(number) for number in range(2 * 143)]
    assert of == sorted(of) and [of.count(b) for b in range(10)] == [81, 34, 15, 8, 5] * 2


@pytest.mark.parametrize(
    ("first", "last", "factor", "count"), [(1, 81, 3, 4), (1, 80, 3, 3), (2, 81, 3, 3), (7, 7, 2, 0)]
)
def test_halvings_are_counted_without_rounding_errors(first, last, factor, count):
    assert halvings(first, last, factor) == count


def test_bracket_sizes_are_rounded_up_exactly():
    assert bracket_sizes(2, 4, 3) == (15, 5, 1)  # 5 / 3 * 9 is a little more than 15 as floats


def test_rung_ranks_the_first_of_equal_scores_higher():
    rung = Rung()
    for number in (7, 3, 5):
        rung.add(number, -1.0)
    rung.add(1, -2.0)
    assert rung.best(10) == [7, 3, 5, 1] and rung.rank(5) == 2
    rung.remove(3)
    assert Rung.restored(rung.state()).best(2) == [7, 5]
    late = Rung()
    for number, score in ((4, 0.1), (2, 0.9), (9, 0.1)):
        late.add(number, score)
    assert late.state() == [[4, 0.1], [2, 0.9], [9, 0.1]]  # in the order of arrival, which decides among equals
    assert [late.best(count) for count in (-1, 0, 1, 2)] == [[], [], [2], [2, 4]] and len(late) == 3


@pytest.mark.parametrize(
    ("count", "among", "as_good"),
    [(0, "", ""), (1, "b", "b"), (2, "ab", "abc"), (3, "abc", "abc"), (4, "abcd", "abcd"), (9, "abcd", "abcd")],
)
def test_rung_determines_the_best_and_all_that_score_as_much(count, among, as_good):
    rung = Rung()
    keys = [rung.add(number, score) for number, score in enumerate((0.5, 0.9, 0.5, 0.1))]
    assert "".join(name for name, key in zip("abcd", keys, strict=True) if rung.is_among(count, key)) == among
    assert "".join(name for name, key in zip("abcd", keys, strict=True) if rung.is_as_good_as(count, key)) == as_good


def test_bracket_promotes_as_soon_as_the_decision_is_certain():
    bracket = Bracket([4, 2, 1])
    for member in range(4):
        bracket.join(member)
    assert bracket.record_arrival(0, 0.5) is None
    assert bracket.record_arrival(1, 0.7) is None
    assert bracket.record_arrival(2, 0.6) is None  # and 0 is out by this, but it waits already
    assert bracket.promote() == 1  # with any result of 3
    assert bracket.promote() is None
    assert bracket.record_arrival(3, 0.1) is False
    assert bracket.promote() == 2
    assert not bracket.is_complete


def test_member_that_leaves_a_bracket_frees_its_place():
    bracket = Bracket([3, 1])
    for member in range(3):
        bracket.join(member)
    assert bracket.record_arrival(0, 0.9) is None
    assert bracket.record_arrival(1, 0.1) is False
    bracket.remove_member(0)  # while it waited
    bracket.remove_member(2)  # before its result arrived
    assert bracket.promote() is None and bracket.is_complete


@pytest.mark.parametrize(
    ("ladder", "problem"),
    [
        ((0, 9, 3), "first=0: it must be an integer, 1 or more"),
        ((1, 0, 3), "last=0: it must be an integer, 1 or more"),
        ((1, 9, 1), "factor=1: it must be an integer, 2 or more"),
        ((True, 9, 3), "first=True: it must be an integer, 1 or more"),
        ((1, 9.0, 3), "last=9.0: it must be an integer, 1 or more"),
        ((1, 9, "3"), "factor='3': it must be an integer, 2 or more"),
        ((1.5, 9, 3), "first=1.5: it must be an integer, 1 or more"),
        ((10, 9, 3), "first=10 is above last=9: a trial would end before it is compared; swap them"),
    ],
)
def test_invalid_ladder_is_refused_by_argument_name(ladder, problem):
    with pytest.raises(ArgumentError) as refused:
        check_ladder(*ladder, ("first", "last", "factor"))
    assert str(refused.value) == problem


@pytest.mark.parametrize("ladder", [(1, 1, 2), (3, 3, 2), (1, 9, 3), (5, None, 2)])
def test_ladder_may_have_one_rung_or_no_end(ladder):
    check_ladder(*ladder, ("first", "last", "factor"))


def through_json(bracket: Bracket) -> Bracket:
    restored = Bracket.restored(json.loads(json.dumps(bracket.state())))
    assert restored.state() == bracket.state()
    return restored


def test_bracket_counts_members_that_may_still_join():
    bracket = Bracket([3, 1])
    expected = [bracket.expected]
    for member in range(4):
        bracket.join(member)
        expected.append(bracket.expected)
    assert expected == [3, 2, 1, 0, 0]


@pytest.mark.parametrize("taken_over", [lambda bracket: bracket, through_json])
def test_bracket_with_four_sizes_promotes_members_up_to_the_last_rung(taken_over):
    bracket = Bracket([6, 3, 2, 1])
    for member in range(5):
        bracket.join(member)
    bracket = taken_over(bracket)
    assert bracket.record_arrival(0, 0.9) is None  # 1 to 4 run, and one has not begun
    bracket.join(5)
    assert [bracket.record_arrival(member, score) for member, score in ((1, 0.8), (2, 0.1), (3, 0.2))] == [
        None,
        None,
        None,
    ]
    bracket = taken_over(bracket)
    assert bracket.promote() == 0 and bracket.level(0) == 1 and bracket.promote() is None
    assert bracket.record_arrival(0, 0.1) is None  # two more will reach this rung
    bracket = taken_over(bracket)
    assert bracket.record_arrival(4, 0.7) is None  # 5 may be better
    assert bracket.promote() == 1 and bracket.promote() is None
    bracket = taken_over(bracket)
    assert bracket.record_arrival(5, 0.0) is False
    assert bracket.promote() == 4 and bracket.promote() is None
    assert bracket.record_arrival(1, 0.2) is True and bracket.level(1) == 2  # of 4 and 0 one at most is better
    assert bracket.record_arrival(1, 0.5) is None and not bracket.is_complete
    bracket = taken_over(bracket)
    bracket.remove_member(4)  # so 0 continues
    assert bracket.promote() == 0 and bracket.level(0) == 2 and bracket.promote() is None
    bracket = taken_over(bracket)
    assert bracket.record_arrival(0, 0.4) is False
    assert bracket.promote() == 1 and bracket.level(1) == 3 and not bracket.is_complete
    bracket.remove_member(1)
    assert bracket.is_complete


@pytest.mark.parametrize(
    ("sizes", "joined", "closed"),
    [
        ([9, 3, 1], 9, [9, 3, 1]),
        ([9, 3, 1], 8, [8, 2, 1]),
        ([9, 3, 1], 6, [6, 2, 1]),
        ([9, 3, 1], 1, [1, 1, 1]),
        ([15, 5, 1], 6, [6, 2, 1]),
    ],
)
def test_closed_bracket_has_the_sizes_of_its_members(sizes, joined, closed):
    bracket = Bracket(sizes)
    for member in range(joined):
        bracket.join(member)
    bracket.close()
    assert bracket.sizes == closed and bracket.expected == 0


def test_waiting_member_is_promoted_once_all_competitors_arrived():
    bracket = Bracket([4, 2, 1])
    for member in range(4):
        bracket.join(member)
    assert [bracket.record_arrival(member, -float(member)) for member in range(3)] == [None, None, False]
    assert [bracket.promote(), bracket.promote()] == [0, None]
    assert bracket.record_arrival(3, -9.0) is False
    assert bracket.record_arrival(0, 5.0) is None  # 1 will reach this rung, too
    assert [bracket.promote(), bracket.promote()] == [1, None]
    bracket.remove_member(1)
    assert [bracket.promote(), bracket.promote()] == [0, None] and not bracket.is_complete
    bracket.remove_member(0)
    assert bracket.is_complete


def test_bracket_expects_no_more_arrivals_than_places_left_on_a_rung():
    bracket = Bracket([6, 4, 3, 1])
    for member in range(6):
        bracket.join(member)
    assert [bracket.record_arrival(member, -float(member)) for member in range(4)] == [None] * 4
    assert [bracket.promote() for _ in range(3)] == [0, 1, None]  # of four places two are left for 2 to 5
    assert bracket.record_arrival(1, 0.5) is None  # 0 and two more may be better
    assert bracket.record_arrival(0, 0.6) is True  # those two alone cannot take all three places


def test_displaced_member_is_promoted_when_a_better_one_leaves():
    bracket = Bracket([5, 2])
    for member in range(5):
        bracket.join(member)
    assert [bracket.record_arrival(member, score) for member, score in ((0, 0.5), (1, 0.6), (2, 0.7))] == [None] * 3
    for member in (2, 3, 4):
        bracket.remove_member(member)
    assert [bracket.promote() for _ in range(3)] == [1, 0, None]
