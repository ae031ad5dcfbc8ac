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


def with_started_trials(stopper: Hyperband, trials: int) -> Hyperband:
    for number in range(trials):
        stopper.begin(number, {})
    return stopper


def report_next_rungs(stopper: Hyperband, *numbers: int) -> list[object]:
    """Each comes to its next rung with a score that is the worse the greater its number is."""
    return [stopper.report(number, stopper.next_step(number), -float(number)) for number in numbers]


def resume_all(stopper: Hyperband) -> list[int]:
    """Return the resumed trials, in order."""
    return list(iter(stopper.resume, None))


def test_hyperband_promotes_the_best_third_as_soon_as_it_is_determined():
    stopper = with_started_trials(Hyperband(9), 9)
    assert stopper.next_step(0) == 1
    assert stopper.report(0, 0, 9.0) is CONTINUE  # on its way
    assert report_next_rungs(stopper, 8, 7, 6, 5, 4, 3) == [PAUSE] * 6 and stopper.resume() is None
    assert report_next_rungs(stopper, 0, 1) == [CONTINUE] * 2  # with any result of 2 they are among the best three
    assert stopper.next_step(0) == 3 and stopper.resume() is None
    assert report_next_rungs(stopper, 2) == [CONTINUE]
    assert report_next_rungs(stopper, 1, 2) == [PAUSE, STOP]  # of the three at step 3 one continues; 2 is out already
    assert report_next_rungs(stopper, 0) == [CONTINUE] and stopper.next_step(0) == 9
    assert stopper.report(0, 8, 1.0) is CONTINUE and stopper.report(0, 9, 1.0) is STOP


def test_hyperband_report_after_the_verdict_has_no_effect():
    stopper = with_started_trials(Hyperband(9), 9)
    assert [stopper.report(0, step, 1.0) for step in (1, 2, 5)] == [PAUSE] * 3
    report_next_rungs(stopper, *range(1, 9))
    assert [stopper.report(8, step, 100.0) for step in (2, 9)] == [STOP, STOP]


def test_hyperband_compares_a_report_past_several_rungs_at_each_of_them():
    stopper = with_started_trials(Hyperband(9), 9)
    assert report_next_rungs(stopper, *range(1, 9)) == [PAUSE] * 3 + [STOP] * 5
    assert stopper.report(0, 5, 0.5) is PAUSE  # the best at 1; at 3 the others are still missing
    assert resume_all(stopper) == [1, 2]
    assert report_next_rungs(stopper, 1) == [STOP] and stopper.resume() is None
    stopper.end(2, ENDED)
    assert stopper.resume() == 0 and stopper.next_step(0) == 9


def test_hyperband_trial_that_reached_max_step_frees_its_place_in_the_rung():
    stopper = with_started_trials(Hyperband(9), 9)
    assert stopper.report(0, 9, 100.0) is STOP  # it passed all rungs between two reports
    for number in range(1, 9):
        stopper.report(number, 1, -float(number))
    assert resume_all(stopper) == [1, 2, 3]


def test_hyperband_resumes_the_oldest_bracket_first():
    stopper = with_started_trials(Hyperband(9), 14)  # 9 trials, of which 3 continue; then 5, of which 1 continues
    report_next_rungs(stopper, *range(14))
    assert [stopper.next_step(number) for number in resume_all(stopper)] == [3, 3, 3, 9]


def test_hyperband_brackets_start_at_later_rungs_and_repeat():
    stopper = with_started_trials(Hyperband(9), 18)
    assert [stopper.next_step(number) for number in (0, 8, 9, 13, 14, 16, 17)] == [1, 1, 3, 3, 9, 9, 1]
    later = with_started_trials(Hyperband(10, min_step=2, reduction_factor=2), 1)
    assert later.next_step(0) == 2  # 10 / 4, rounded down


def test_hyperband_bracket_depends_on_the_trial_number_and_not_on_start_order():
    stopper = Hyperband(9, overlap=False)
    for number in (12, 3, 9):
        stopper.begin(number, {})
    assert [stopper.next_step(number) for number in (12, 3, 9)] == [3, 1, 3]
    assert stopper.state()["newest"] == 1 and stopper.state()["begun"] == 3


def test_hyperband_does_not_wait_for_an_ended_trial():
    stopper = with_started_trials(Hyperband(9), 9)
    report_next_rungs(stopper, *range(8))
    assert resume_all(stopper) == [0, 1]  # 2 has to wait for 8
    stopper.end(8, ENDED)
    assert resume_all(stopper) == [2]
    stopper.end(0, ENDED)
    assert (
        report_next_rungs(stopper, 1) == [PAUSE]
        and report_next_rungs(stopper, 2) == [STOP]
        and resume_all(stopper) == [1]
    )


def test_hyperband_settles_an_incomplete_bracket_with_its_members():
    stopper = with_started_trials(Hyperband(9), 4)
    assert report_next_rungs(stopper, 0, 1, 2, 3) == [PAUSE] * 3 + [STOP] and stopper.resume() is None
    assert stopper.settle() == 0 and stopper.settle() is None  # of four one continues
    assert (
        stopper.next_step(0) == 3
        and report_next_rungs(stopper, 0) == [CONTINUE]
        and report_next_rungs(stopper, 0) == [STOP]
    )
    stopper.end(0, Outcome(End.STOPPED, 0.0, 9))
    assert stopper.state()["brackets"] == []  # no trial will continue in it


def test_n_iterations_determines_the_total_of_hyperband_trials():
    assert [Hyperband(9, n_iterations=count).total for count in (1, 2, 3, 4, None)] == [9, 14, 17, 26, None]
    stopper = Hyperband(9, n_iterations=1)
    wanted = []
    for number in range(9):
        wanted.append(stopper.wants())
        stopper.begin(number, {})
    assert wanted == [True] * 9 and not stopper.wants()
    assert with_started_trials(Hyperband(9), 9).wants()


def test_hyperband_without_overlap_starts_a_bracket_after_the_previous_one():
    stopper = Hyperband(3, overlap=False)  # brackets of 3 and 2
    wanted = []
    for number in range(3):
        wanted.append(stopper.wants())
        stopper.begin(number, {})
    assert wanted == [True] * 3 and not stopper.wants()
    assert (
        report_next_rungs(stopper, 0, 1, 2) == [PAUSE, STOP, STOP]
        and resume_all(stopper) == [0]
        and not stopper.wants()
    )
    assert report_next_rungs(stopper, 0) == [STOP] and not stopper.wants()  # its function has yet to end
    stopper.end(0, Outcome(End.STOPPED, 0.0, 3))
    assert stopper.wants()


def test_hyperband_state_restores_all_decisions():
    stopper = with_started_trials(Hyperband(9, n_iterations=2, overlap=False), 11)
    report_next_rungs(stopper, 0, 1, 2, 3, 4, 5, 6, 7, 9)
    stopper.end(4, ENDED)
    assert stopper.resume() == 0
    other = with_started_trials(
        Hyperband(9, n_iterations=2, overlap=False), 14
    )  # of an earlier search, which it forgets
    other.restore(json.loads(json.dumps(stopper.state())))
    assert other.state() == stopper.state()
    for one in (stopper, other):
        assert one.wants() and [one.next_step(number) for number in (0, 8, 10)] == [3, 1, 3]
        assert report_next_rungs(one, 8, 0) == [STOP, PAUSE] and resume_all(one) == [1, 2]
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
def test_invalid_hyperband_arguments_are_refused_with_the_rule(arguments, problem):
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


def test_hyperband_searcher_tries_configurations_with_the_budgets_of_their_bracket():
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
def test_hyperband_searcher_ends_at_the_first_of_its_limits(iterations, num_trials, configurations, total):
    searcher = HyperbandSearcher(SPACE, max_budget=9, n_iterations=iterations, num_trials=num_trials)
    assert (searcher.configurations, searcher.total) == (configurations, total)
    assert not searcher.hand_over and searcher.counts == (configurations is not None)


def test_last_bracket_continues_with_the_available_configurations():
    searcher = HyperbandSearcher(SPACE, max_budget=9, num_trials=6, searcher=GridSearcher(SPACE))
    assert tried(searcher) == [*((x, 1) for x in range(6)), (0, 3), (1, 3), (0, 9)]


def test_hyperband_searcher_default_is_factor_3_from_budget_1():
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
