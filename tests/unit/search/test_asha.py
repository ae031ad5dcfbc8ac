"""Tests of ASHA by cases; tests/unit/search/test_replayed_rules.py compares it with its definition on random histories."""

import json

import pytest

from hopsml.errors import ArgumentError
from hopsml.search.algorithms.asha import AshaSearcher, AshaStopper
from hopsml.search.algorithms.random import GridSearcher
from hopsml.search.contract import End, Outcome, Suggestion, Verdict
from hopsml.search.space.space import Searchspace

pytestmark = pytest.mark.fast

CONTINUE, PAUSE, STOP = Verdict.CONTINUE, Verdict.PAUSE, Verdict.STOP
ENDED = Outcome(End.FAILED)


def with_started_trials(stopper: AshaStopper, trials: int) -> AshaStopper:
    for number in range(trials):
        stopper.begin(number, {})
    return stopper


def restored_copy(stopper: AshaStopper, **arguments: object) -> AshaStopper:
    """Another one that knows no more than the first one's state as JSON."""
    other = AshaStopper(**arguments)
    with_started_trials(other, 3)  # of an earlier search, which it forgets
    other.report(0, 1, 5.0)
    other.restore(json.loads(json.dumps(stopper.state())))
    return other


def test_asha_promotes_one_in_eta_trials_and_pauses_the_others():
    stopper = with_started_trials(AshaStopper(9, reduction_factor=3), 7)
    assert [stopper.next_step(number) for number in (0, 6)] == [1, 1]
    assert [stopper.report(number, 1, score) for number, score in enumerate((0.5, 0.6))] == [PAUSE, PAUSE]
    assert stopper.resume() is None  # of two none is the best third
    assert stopper.report(2, 1, 0.7) is CONTINUE and stopper.next_step(2) == 3
    assert [stopper.report(number, 1, score) for number, score in ((3, 0.1), (4, 0.2))] == [PAUSE, PAUSE]
    assert stopper.resume() is None
    assert stopper.report(5, 1, 0.3) is PAUSE  # six have arrived: two may continue
    assert [stopper.resume(), stopper.resume()] == [1, None] and stopper.next_step(1) == 3
    assert stopper.report(1, 2, 0.9) is CONTINUE  # on its way to the next rung
    assert stopper.report(1, 3, 0.9) is PAUSE and stopper.report(1, 4, 9.0) is PAUSE


def test_asha_trial_at_max_step_is_stopped():
    stopper = with_started_trials(AshaStopper(9, reduction_factor=3), 9)
    assert [stopper.report(number, 1, float(number)) for number in range(3)] == [PAUSE, PAUSE, CONTINUE]
    for number in range(3, 9):
        assert stopper.report(number, 1, float(number)) is CONTINUE
    assert [stopper.report(number, 3, float(number)) for number in (6, 7)] == [PAUSE, PAUSE]
    assert stopper.report(8, 3, 8.0) is CONTINUE and stopper.next_step(8) == 9
    assert stopper.report(8, 8, 0.0) is CONTINUE and stopper.report(8, 9, 0.0) is STOP
    assert stopper.report(2, 9, 0.0) is STOP  # at max_step it is complete, wherever it would have paused


@pytest.mark.parametrize(
    ("trials", "arguments", "step"),
    [(10, {}, 4), (3, {}, 1), (15, {}, 4), (16, {}, None), (64, {}, None), (10, {"mode": "stop"}, None),
     (10, {"reduction_factor": 3}, None), (63, {"max_step": 64}, 16), (64, {"max_step": 64}, None),
     (10, {"max_step": 27, "min_step": 9, "reduction_factor": 3}, None),
     (2, {"max_step": 27, "min_step": 9, "reduction_factor": 3}, 9)],
)  # fmt: skip
def test_asha_advises_when_trials_are_too_few_for_a_complete_one(trials, arguments, step):
    advice = AshaStopper(**arguments).advice(trials)
    assert (f"of {trials} trials none continues past step {step}." in advice) == (step is not None), advice
    assert bool(advice) == (step is not None)


def test_asha_compares_a_report_past_several_rungs_at_each_of_them():
    stopper = with_started_trials(AshaStopper(27, reduction_factor=3), 6)
    for number in range(2):
        stopper.report(number, 1, 0.0)
    assert stopper.report(2, 5, 1.0) is PAUSE  # good enough at 1; the first that reaches 3
    assert stopper.report(3, 1, 0.0) is PAUSE and stopper.resume() is None
    assert [stopper.report(number, 3, 0.5) for number in (4, 5)] == [PAUSE, PAUSE]  # 5 continues at 1, in vain
    assert stopper.state()["rungs"] == [[[[0, 0.0], [1, 0.0], [2, 1.0], [3, 0.0], [4, 0.5], [5, 0.5]], [[2, 1.0]]]]
    assert stopper.resume() == 4


def test_asha_rungs_are_powers_of_the_factor_below_the_last_one():
    stopper = with_started_trials(AshaStopper(10, reduction_factor=2, brackets=4), 4)
    assert [stopper.next_step(number) for number in range(4)] == [1, 2, 1, 5]
    alone = with_started_trials(AshaStopper(10, reduction_factor=2, mode="stop"), 1)
    steps = [alone.next_step(0)]
    while alone.report(0, steps[-1], 1.0) is CONTINUE:
        steps.append(alone.next_step(0))
    assert steps == [1, 2, 5, 10]


def test_asha_without_max_step_continues_the_best_trials_indefinitely():
    stopper = with_started_trials(AshaStopper(reduction_factor=2), 2)
    steps = [stopper.next_step(1)]
    assert stopper.max_step is None
    for _ in range(5):
        assert stopper.report(0, steps[-1], 0.0) is PAUSE
        assert stopper.report(1, steps[-1], 1.0) is CONTINUE
        steps.append(stopper.next_step(1))
        stopper._trials[0].verdict = CONTINUE
    assert steps == [1, 2, 4, 8, 16, 32]


def test_asha_default_is_one_bracket_with_factor_4_from_step_1():
    stopper = with_started_trials(AshaStopper(), 4)
    assert [stopper.report(number, 1, float(number)) for number in range(4)] == [PAUSE] * 3 + [CONTINUE]
    assert stopper.next_step(3) == 4
    later = with_started_trials(AshaStopper(min_step=3, reduction_factor=2), 1)
    assert later.next_step(0) == 3 and later.report(0, 2, 1.0) is CONTINUE and later.report(0, 3, 1.0) is PAUSE


def test_asha_mode_stop_never_pauses_and_continues_the_best_of_few():
    stopper = with_started_trials(AshaStopper(9, reduction_factor=3, mode="stop"), 8)
    assert stopper.report(0, 1, 0.5) is CONTINUE
    assert stopper.report(1, 1, 0.4) is STOP and stopper.report(1, 2, 9.0) is STOP
    assert stopper.report(2, 1, 0.6) is CONTINUE
    assert stopper.report(3, 1, 0.55) is STOP
    assert stopper.report(4, 1, 0.1) is STOP
    assert stopper.report(5, 1, 0.55) is CONTINUE  # six have arrived: as good as the second
    assert stopper.resume() is None and stopper.next_step(0) == 3


def test_asha_mode_stop_continues_trials_that_equal_the_best():
    stopper = with_started_trials(AshaStopper(9, reduction_factor=3, mode="stop"), 4)
    equal = [stopper.report(number, 1, 0.5) for number in range(3)]
    assert equal == [CONTINUE] * 3
    assert stopper.report(3, 1, 0.4) is STOP


def test_asha_fills_brackets_in_proportion_to_their_shares():
    """4**2 / 3 : 4 / 2 : 1, each trial to the bracket that would still be furthest below its share with it."""
    stopper = with_started_trials(AshaStopper(64, reduction_factor=4, brackets=3), 8)
    assert [bracket for _, bracket, _, _ in stopper.state()["trials"]] == [0, 0, 1, 0, 0, 0, 1, 2]


@pytest.mark.parametrize("max_step", [27, None])
def test_asha_brackets_start_one_rung_higher_each(max_step):
    stopper = with_started_trials(AshaStopper(max_step, reduction_factor=3, brackets=2), 5)
    assert [bracket for _, bracket, _, _ in stopper.state()["trials"]] == [0, 1, 0, 0, 1]
    assert [stopper.next_step(number) for number in range(5)] == [1, 3, 1, 1, 3]


def test_asha_resumes_trials_of_the_highest_rung_first_in_any_bracket():
    stopper = AshaStopper(8, reduction_factor=2, brackets=2)
    for number in range(20):
        stopper.begin(number, {})
    first = [number for number, bracket, _, _ in stopper.state()["trials"] if bracket == 0]
    second = [number for number, bracket, _, _ in stopper.state()["trials"] if bracket == 1]
    best, *worse = first[:4]
    for number, score in ((best, 0.9), (worse[0], 0.8), (worse[1], 0.0), (worse[2], 0.0)):
        stopper.report(number, 1, score)
    for number, score in ((second[0], 0.9), (second[1], 0.1)):
        stopper.report(number, 2, score)
    assert [stopper.resume() for _ in range(4)] == [second[0], best, worse[0], None]


def test_asha_never_resumes_an_ended_trial_but_counts_its_score():
    stopper = with_started_trials(AshaStopper(9, reduction_factor=2), 4)
    assert stopper.report(0, 1, 0.9) is PAUSE
    assert stopper.report(1, 1, 0.1) is PAUSE
    stopper.end(0, ENDED)
    assert stopper.resume() is None  # the best of two is over, and its place with it
    assert [stopper.report(2, 1, 0.0), stopper.report(3, 1, 0.0)] == [PAUSE, PAUSE]
    assert [stopper.resume(), stopper.resume()] == [1, None]
    stopper.end(7, ENDED)  # it never started


def test_restored_asha_resumes_a_trial_paused_on_a_higher_rung():
    stopper = with_started_trials(AshaStopper(4, reduction_factor=2), 3)
    assert [stopper.report(0, 1, 0.5), stopper.report(1, 1, 0.6), stopper.report(1, 2, 0.6)] == [PAUSE, CONTINUE, PAUSE]
    other = restored_copy(stopper, max_step=4, reduction_factor=2)
    assert [other.report(2, 1, 0.7), other.report(2, 2, 0.1), other.resume()] == [CONTINUE, PAUSE, 1]


@pytest.mark.parametrize("mode", ["promote", "stop"])
def test_asha_state_restores_all_decisions(mode):
    arguments = {"max_step": 8, "reduction_factor": 2, "brackets": 2, "mode": mode}
    stopper = with_started_trials(AshaStopper(**arguments), 8)
    for number in range(5):
        stopper.report(number, stopper.next_step(number), -float(number))
    for number in range(5):
        if stopper.report(number, 0, 0.0) is CONTINUE:
            stopper.report(number, stopper.next_step(number), -float(number))
    other = restored_copy(stopper, **arguments)
    assert other.state() == stopper.state()
    for number in range(5, 8):
        step = stopper.next_step(number)
        assert other.next_step(number) == step
        assert other.report(number, step, 3.0) is stopper.report(number, step, 3.0)
    resumed = [stopper.resume() for _ in range(8)]
    assert [other.resume() for _ in range(8)] == resumed and (mode == "stop") == (set(resumed) == {None})
    assert other.state() == stopper.state()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            {"max_step": 9, "reduction_factor": 3, "brackets": 4},
            "brackets=4: it must be 1 to 3, the number of rungs",
        ),
        ({"brackets": 0}, "brackets=0: it must be an integer, 1 or more"),
        ({"brackets": True}, "brackets=True: it must be an integer, 1 or more"),
        ({"brackets": 1.5}, "brackets=1.5: it must be an integer, 1 or more"),
        ({"mode": "sometimes"}, "mode='sometimes': it must be one of promote, stop"),
        ({"max_step": 0}, "max_step=0: it must be an integer, 1 or more"),
        ({"min_step": 0}, "min_step=0: it must be an integer, 1 or more"),
        ({"reduction_factor": 1}, "reduction_factor=1: it must be an integer, 2 or more"),
        (
            {"max_step": 4, "min_step": 9},
            "min_step=9 is above max_step=4: a trial would end before it is compared; swap them",
        ),
    ],
)
def test_invalid_asha_arguments_are_refused_with_the_rule(arguments, problem):
    with pytest.raises(ArgumentError) as refused:
        AshaStopper(**arguments)
    assert str(refused.value) == problem


# ---------------------------------------------------------------------------------------------- budgets

SPACE = Searchspace(x=("DISCRETE", list(range(9))))


def test_asha_searcher_refuses_too_few_trials_to_reach_the_top_budget():
    assert AshaSearcher(SPACE, num_trials=4).configurations == 4
    with pytest.raises(ArgumentError) as refused:
        AshaSearcher(SPACE, num_trials=3)
    assert str(refused.value) == (
        "num_trials=3: with reduction_factor=2, 4 trials of budget 1 are needed for one trial to reach 4; "
        "increase num_trials or resource_min"
    )
    assert AshaSearcher(SPACE, num_trials=3, resource_min=2).configurations == 3
    with pytest.raises(ArgumentError, match="8 trials of budget 1 are needed for one trial to reach 8"):
        AshaSearcher(SPACE, num_trials=7, resource_max=8)
    with pytest.raises(ArgumentError, match="resource_min=5 is above resource_max=4"):
        AshaSearcher(SPACE, resource_min=5)
    with pytest.raises(ArgumentError, match="reduction_factor=1: it must be an integer, 2 or more"):
        AshaSearcher(SPACE, reduction_factor=1)


def test_asha_searcher_retries_the_best_configurations_with_larger_budgets():
    searcher = AshaSearcher(SPACE, None, 9, 3, 2, 6, GridSearcher(SPACE), True)
    budgets, last = {}, {}
    while isinstance(suggestion := searcher.ask(sum(map(len, budgets.values()))), Suggestion):
        x, number = suggestion.config["x"], sum(map(len, budgets.values()))
        budgets.setdefault(x, []).append(suggestion.config["budget"])
        assert suggestion.parent == last.get(x)
        last[x] = number
        searcher.tell(number, Outcome(End.COMPLETED, -float(x)))
    assert list(budgets) == list(range(9))  # as the searcher gives them
    assert budgets == {x: [2, 6] for x in range(3)} | {x: [2] for x in range(3, 9)}


def test_asha_searcher_draws_the_same_configurations_for_the_same_seed():
    space = Searchspace(x=("DOUBLE", [0.0, 1.0]))
    drawn = [AshaSearcher(space, seed).ask(0).config["x"] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert AshaSearcher(space).ask(0).config["budget"] == 1 and not AshaSearcher(space).hand_over
