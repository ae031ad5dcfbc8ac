"""Tests of Hyperband by cases; test_replayed_rules.py compares it with its definition on random histories."""

import json

import pytest

from hopsml.errors import ArgumentError
from hopsml.search.algorithms.hyperband import Hyperband, HyperbandSearcher
from hopsml.search.algorithms.random import GridSearcher
from hopsml.search.contract import End, Outcome, Suggestion, Verdict, Wait
from hopsml.search.space.space import Searchspace

pytestmark = pytest.mark.fast

CONTINUE, PAUSE, STOP = Verdict.CONTINUE, Verdict.PAUSE, Verdict.STOP
ENDED = Outcome(End.FAILED)


def begun(stopper: Hyperband, trials: int) -> Hyperband:
    for number in range(trials):
        stopper.begin(number, {})
    return stopper


def arrive(stopper: Hyperband, *numbers: int) -> list[object]:
    """Each comes to its next rung with a score that is the worse the greater its number is."""
    return [stopper.report(number, stopper.next_step(number), -float(number)) for number in numbers]


def resumed(stopper: Hyperband) -> list[int]:
    """Those that go on, in order."""
    return list(iter(stopper.resume, None))


def test_the_best_third_of_a_bracket_goes_on_when_it_is_known():
    stopper = begun(Hyperband(9), 9)
    assert stopper.next_step(0) == 1
    assert stopper.report(0, 0, 9.0) is CONTINUE  # on its way
    assert arrive(stopper, 8, 7, 6, 5, 4, 3) == [PAUSE] * 6 and stopper.resume() is None
    assert arrive(stopper, 0, 1) == [CONTINUE] * 2  # whatever 2 does they are among the best three
    assert stopper.next_step(0) == 3 and stopper.resume() is None
    assert arrive(stopper, 2) == [CONTINUE]
    assert arrive(stopper, 1, 2) == [PAUSE, STOP]  # of the three at step 3 one goes on; 2 is out already
    assert arrive(stopper, 0) == [CONTINUE] and stopper.next_step(0) == 9
    assert stopper.report(0, 8, 1.0) is CONTINUE and stopper.report(0, 9, 1.0) is STOP


def test_a_report_after_the_answer_changes_nothing():
    stopper = begun(Hyperband(9), 9)
    assert [stopper.report(0, step, 1.0) for step in (1, 2, 5)] == [PAUSE] * 3
    arrive(stopper, *range(1, 9))
    assert [stopper.report(8, step, 100.0) for step in (2, 9)] == [STOP, STOP]


def test_who_passes_several_rungs_between_two_reports_must_be_good_enough_in_each():
    stopper = begun(Hyperband(9), 9)
    assert arrive(stopper, *range(1, 9)) == [PAUSE] * 3 + [STOP] * 5
    assert stopper.report(0, 5, 0.5) is PAUSE  # the best at 1; at 3 the others are still to come
    assert resumed(stopper) == [1, 2]
    assert arrive(stopper, 1) == [STOP] and stopper.resume() is None
    stopper.end(2, ENDED)
    assert stopper.resume() == 0 and stopper.next_step(0) == 9


def test_who_has_had_all_steps_leaves_its_place_in_the_rung_to_the_next():
    stopper = begun(Hyperband(9), 9)
    assert stopper.report(0, 9, 100.0) is STOP  # it passed all rungs between two reports
    for number in range(1, 9):
        stopper.report(number, 1, -float(number))
    assert resumed(stopper) == [1, 2, 3]


def test_the_oldest_bracket_goes_on_first():
    stopper = begun(Hyperband(9), 14)  # 9 trials, of which 3 go on; then 5, of which 1 goes on
    arrive(stopper, *range(14))
    assert [stopper.next_step(number) for number in resumed(stopper)] == [3, 3, 3, 9]


def test_each_bracket_begins_at_a_later_rung_and_the_first_one_comes_again():
    stopper = begun(Hyperband(9), 18)
    assert [stopper.next_step(number) for number in (0, 8, 9, 13, 14, 16, 17)] == [1, 1, 3, 3, 9, 9, 1]
    later = begun(Hyperband(10, min_step=2, reduction_factor=2), 1)
    assert later.next_step(0) == 2  # 10 / 4, rounded down


def test_trials_belong_to_the_bracket_of_their_number_whichever_begins_first():
    stopper = Hyperband(9, overlap=False)
    for number in (12, 3, 9):
        stopper.begin(number, {})
    assert [stopper.next_step(number) for number in (12, 3, 9)] == [3, 1, 3]
    assert stopper.state()["newest"] == 1 and stopper.state()["begun"] == 3


def test_the_others_do_not_wait_for_one_that_has_ended():
    stopper = begun(Hyperband(9), 9)
    arrive(stopper, *range(8))
    assert resumed(stopper) == [0, 1]  # 2 has to wait for 8
    stopper.end(8, ENDED)
    assert resumed(stopper) == [2]
    stopper.end(0, ENDED)
    assert arrive(stopper, 1) == [PAUSE] and arrive(stopper, 2) == [STOP] and resumed(stopper) == [1]


def test_a_bracket_for_which_there_are_no_more_trials_goes_on_with_those_that_it_has():
    stopper = begun(Hyperband(9), 4)
    assert arrive(stopper, 0, 1, 2, 3) == [PAUSE] * 3 + [STOP] and stopper.resume() is None
    assert stopper.settle() == 0 and stopper.settle() is None  # of four one goes on
    assert stopper.next_step(0) == 3 and arrive(stopper, 0) == [CONTINUE] and arrive(stopper, 0) == [STOP]
    stopper.end(0, Outcome(End.STOPPED, 0.0, 9))
    assert stopper.state()["brackets"] == []  # nobody will go on in it


def test_so_many_brackets_take_so_many_trials():
    assert [Hyperband(9, n_iterations=count).total for count in (1, 2, 3, 4, None)] == [9, 14, 17, 26, None]
    stopper = Hyperband(9, n_iterations=1)
    wanted = []
    for number in range(9):
        wanted.append(stopper.wants())
        stopper.begin(number, {})
    assert wanted == [True] * 9 and not stopper.wants()
    assert begun(Hyperband(9), 9).wants()


def test_without_overlap_the_next_bracket_begins_when_the_one_before_is_over():
    stopper = Hyperband(3, overlap=False)  # brackets of 3 and 2
    wanted = []
    for number in range(3):
        wanted.append(stopper.wants())
        stopper.begin(number, {})
    assert wanted == [True] * 3 and not stopper.wants()
    assert arrive(stopper, 0, 1, 2) == [PAUSE, STOP, STOP] and resumed(stopper) == [0] and not stopper.wants()
    assert arrive(stopper, 0) == [STOP] and not stopper.wants()  # its function has yet to end
    stopper.end(0, Outcome(End.STOPPED, 0.0, 3))
    assert stopper.wants()


def test_its_state_is_all_that_it_knows():
    stopper = begun(Hyperband(9, n_iterations=2, overlap=False), 11)
    arrive(stopper, 0, 1, 2, 3, 4, 5, 6, 7, 9)
    stopper.end(4, ENDED)
    assert stopper.resume() == 0
    other = begun(Hyperband(9, n_iterations=2, overlap=False), 14)  # of an earlier search, which it forgets
    other.restore(json.loads(json.dumps(stopper.state())))
    assert other.state() == stopper.state()
    for one in (stopper, other):
        assert one.wants() and [one.next_step(number) for number in (0, 8, 10)] == [3, 1, 3]
        assert arrive(one, 8, 0) == [STOP, PAUSE] and resumed(one) == [1, 2]
        assert one.report(9, 3, 0.0) is PAUSE
    assert other.state() == stopper.state()


MISSING = (
    "{0} is missing: Hyperband divides it among the rungs; say {0}=81, for example, which stands in "
    '{1}={{"{0}": 81}} where you name the algorithm'
)
COUNT = "how many brackets, 1 or more, was expected; None: without end"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, MISSING.format("max_step", "stopper_args")),
        ({"max_step": 9, "n_iterations": 0}, f"n_iterations=0: {COUNT}"),
        ({"max_step": 9, "n_iterations": True}, f"n_iterations=True: {COUNT}"),
        ({"max_step": 9, "n_iterations": 1.5}, f"n_iterations=1.5: {COUNT}"),
        ({"max_step": 9, "reduction_factor": 1}, "reduction_factor=1: it must be an integer, 2 or more"),
        ({"max_step": 9, "min_step": 0}, "min_step=0: it must be an integer, 1 or more"),
        ({"max_step": 0}, "max_step=0: it must be an integer, 1 or more"),
    ],
)
def test_what_cannot_be_is_refused_with_its_rule(arguments, problem):
    with pytest.raises(ArgumentError) as refused:
        Hyperband(**arguments)
    assert str(refused.value) == problem


# ---------------------------------------------------------------------------------------------- budgets

SPACE = Searchspace(x=("DISCRETE", list(range(14))))


def tried(searcher: HyperbandSearcher) -> list[tuple[int, int]]:
    """(configuration, budget) of all trials on one place; the smaller the configuration, the better."""
    trials: list[tuple[int, int]] = []
    while isinstance(suggestion := searcher.ask(len(trials)), Suggestion):
        x = suggestion.config["x"]
        earlier = [number for number, (other, _) in enumerate(trials) if other == x]
        assert suggestion.parent == (earlier[-1] if earlier and searcher.hand_over else None)
        searcher.tell(len(trials), Outcome(End.COMPLETED, -float(x)))
        trials.append((x, suggestion.config["budget"]))
    assert suggestion is Wait.DONE
    return trials


def test_configurations_are_tried_with_the_budgets_of_their_bracket():
    searcher = HyperbandSearcher(SPACE, None, 1, 9, 3, 2, GridSearcher(SPACE), True)
    assert searcher.total == 9 + 3 + 1 + 5 + 1 and searcher.configurations == 14 and searcher.hand_over
    expected = [(x, 1) for x in range(9)] + [(x, 3) for x in (0, 1, 2, *range(9, 14))] + [(0, 9), (9, 9)]
    assert sorted(tried(searcher)) == sorted(expected)


@pytest.mark.parametrize(
    ("iterations", "num_trials", "configurations", "total"),
    [
        (2, None, 14, 19),
        (2, 14, 14, 19),
        (2, 20, 14, 19),
        (2, 13, 13, None),
        (None, 5, 5, None),
        (None, None, None, None),
    ],
)
def test_whatever_ends_it_first_counts(iterations, num_trials, configurations, total):
    searcher = HyperbandSearcher(SPACE, max_budget=9, n_iterations=iterations, num_trials=num_trials)
    assert (searcher.configurations, searcher.total) == (configurations, total)
    assert not searcher.hand_over and searcher.counts == (configurations is not None)


def test_the_last_bracket_goes_on_with_the_configurations_that_there_are():
    searcher = HyperbandSearcher(SPACE, max_budget=9, num_trials=6, searcher=GridSearcher(SPACE))
    assert tried(searcher) == [*((x, 1) for x in range(6)), (0, 3), (1, 3), (0, 9)]


def test_what_is_not_asked_for_is_a_third_of_the_configurations_from_a_budget_of_one():
    space = Searchspace(x=("DOUBLE", [0.0, 1.0]))
    drawn = [HyperbandSearcher(space, seed, max_budget=9).ask(0).config for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2] and drawn[0]["budget"] == 1
    assert HyperbandSearcher(SPACE, max_budget=9, n_iterations=1).configurations == 9
    assert HyperbandSearcher(SPACE, min_budget=3, max_budget=12, eta=2).ask(0).config["budget"] == 3
    for arguments, problem in (
        ({}, MISSING.format("max_budget", "searcher_args")),
        ({"max_budget": 9, "eta": 1}, "eta=1: it must be an integer, 2 or more"),
        ({"max_budget": 9, "min_budget": 0}, "min_budget=0: it must be an integer, 1 or more"),
        ({"max_budget": 9, "n_iterations": 0}, f"n_iterations=0: {COUNT}"),
    ):
        with pytest.raises(ArgumentError) as refused:
            HyperbandSearcher(SPACE, **arguments)
        assert str(refused.value) == problem
