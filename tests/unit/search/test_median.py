"""Tests of median stopping against its definition."""

import random
import statistics
from collections.abc import Sequence

import pytest

from hopsml.errors import ArgumentError
from hopsml.search.algorithms.median import MedianStop
from hopsml.search.contract import End, Outcome, Verdict
from tests.unit.search.executor_pool import ExecutorPool

pytestmark = pytest.mark.fast


class NaiveMedian:
    """Works every answer out from all reports."""

    def __init__(self, min_trials):
        self.min_trials = min_trials
        self.reports = {}
        self.finished = []
        self.stopped = 0

    def began(self, number, config):
        self.reports[number] = []

    def reported(self, number, step, score, answer):
        self.reports[number].append((step, score))
        means = []
        for other in self.finished:
            if self.reports[other] and self.reports[other][-1][0] >= step:
                until = [value for at, value in self.reports[other] if at <= step]
                if until:
                    means.append(sum(until) / len(until))
        best = max(value for _, value in self.reports[number])
        worse = len(self.finished) >= self.min_trials and bool(means) and best < statistics.median(means)
        self.stopped += worse
        assert answer is (Verdict.STOP if worse else Verdict.CONTINUE), (number, step, best, means)

    def ended(self, number, outcome):
        if outcome.end is not End.FAILED:
            self.finished.append(number)

    def resumed(self, number, settling):
        assert number is None


def test_median_stopper_decides_as_its_naive_model():
    stopped = 0
    for seed in range(100):
        rng = random.Random(seed)
        model = NaiveMedian(rng.randint(1, 6))
        ExecutorPool(
            MedianStop(model.min_trials), places=rng.randint(1, 5), trials=15, seed=seed, last_step=rng.randint(3, 12),
            score=lambda trial, rng: rng.randint(-8, 0) / 4 - trial.number % 3, stride=rng.choice([1, 1, 4]),
            fails=rng.choice([0, 0.1]), watchers=[model],
        ).run()  # fmt: skip
        stopped += model.stopped
    assert stopped > 200


def test_median_stopper_ignores_failed_trials():
    stopper = MedianStop(min_trials=1)
    for number in range(3):
        stopper.begin(number, {})
    assert stopper.report(0, 1, 10.0) is Verdict.CONTINUE
    stopper.end(0, Outcome(End.FAILED))
    assert stopper.report(1, 1, 5.0) is Verdict.CONTINUE
    stopper.end(1, Outcome(End.STOPPED, 5.0, 1))
    assert stopper.report(2, 1, 4.0) is Verdict.STOP


def test_median_stopper_interval_counts_steps_and_not_reports():
    stopper = MedianStop(min_trials=1, interval=10)
    stopper.begin(0, {})
    for step in range(1, 41):
        stopper.report(0, step, float(step))  # the mean until 10 is 5.5, until 13 it is 7
    stopper.end(0, Outcome(End.COMPLETED, 40.0, 40))
    for number, steps in ((1, (3, 6, 9, 10)), (2, (3, 6, 9, 13)), (3, (10,)), (4, (13,)), (6, (0,))):
        stopper.begin(number, {})
        answers = [stopper.report(number, step, 0.0) for step in steps]
        expected = Verdict.STOP if number < 6 else Verdict.CONTINUE  # the other one had not reported at step 0
        assert answers == [Verdict.CONTINUE] * (len(steps) - 1) + [expected], number
    stopper.begin(5, {})
    assert stopper.report(5, 10, 6.0) is Verdict.CONTINUE
    assert stopper.report(6, 13, 6.0) is Verdict.STOP
    assert stopper.state()["running"][-2:] == [[6, [[0, 13], [0.0, 6.0], True, 1]], [5, [[10], [6.0], False, 1]]]
    after = MedianStop(min_trials=1, interval=10)
    after.restore(stopper.state())
    assert [after.report(5, step, 6.0) for step in (13, 19, 20)] == [Verdict.CONTINUE] * 2 + [Verdict.STOP]


def test_median_stopper_compares_nothing_before_min_step():
    stopper = MedianStop(min_trials=1, interval=2, min_step=3)
    stopper.begin(0, {})
    for step in range(1, 8):
        stopper.report(0, step, 1.0)
    stopper.end(0, Outcome(End.COMPLETED, 1.0, 7))
    stopper.begin(1, {})
    assert [stopper.report(1, step, 0.0) for step in range(1, 5)] == [Verdict.CONTINUE] * 2 + [Verdict.STOP] * 2
    at_once = MedianStop(min_trials=1, min_step=3)
    for number, score in ((0, 1.0), (1, 0.0)):
        at_once.begin(number, {})
        answers = [at_once.report(number, step, score) for step in range(1, 5)]
        at_once.end(number, Outcome(End.COMPLETED, score, 4))
    assert answers == [Verdict.CONTINUE] * 2 + [Verdict.STOP] * 2


@pytest.mark.parametrize(
    ("interval", "min_step", "steps", "compared_at"),
    [
        (1, 0, range(0, 6), [0, 1, 2, 3, 4, 5]),
        (1, 3, range(0, 6), [3, 4, 5]),
        (2, 0, range(0, 6), [0, 2, 4]),
        (2, 3, range(1, 9), [3, 5, 7]),
        (4, 3, range(1, 13), [3, 7, 11]),
        (4, 3, range(2, 20, 4), [6, 10, 14, 18]),  # the first report at or past 3, 7, 11, 15
        (10, 5, [4, 5, 14, 15, 16], [5, 15]),
    ],
)
def test_median_stopper_intervals_count_from_min_step(
    interval: int, min_step: int, steps: Sequence[int], compared_at: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[int] = []
    stopper = MedianStop(min_trials=1, interval=interval, min_step=min_step)
    stopper.begin(0, {})
    for step in range(20):
        stopper.report(0, step, 1.0)
    stopper.end(0, Outcome(End.COMPLETED, 1.0, 19))
    for last in steps:  # a trial is good until a step, and bad there: it is stopped if that is where it is compared
        stopper.begin(1, {})
        before = [step for step in steps if step < last]
        for step in before:
            stopper.report(1, step, 0.0)
        monkeypatch.setattr(stopper._running[1], "stopped", False)
        if stopper.report(1, last, 0.0) is Verdict.STOP:
            compared.append(last)
        restored = MedianStop(min_trials=1, interval=interval, min_step=min_step)
        restored.restore(stopper.state())
        assert restored.state() == stopper.state()
        stopper.end(1, Outcome(End.FAILED))
    assert compared == compared_at


def test_median_stopper_default_requires_10_ended_trials():
    stopper, answers = MedianStop(), []
    for number in range(12):
        stopper.begin(number, {})
        answers.append(stopper.report(number, 0, -float(number)))
        stopper.end(number, Outcome(End.COMPLETED, 0.0, 0))
    assert answers == [Verdict.CONTINUE] * 10 + [Verdict.STOP] * 2


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"min_trials": 0}, "min_trials=0: it must be an integer, 1 or more"),
        ({"interval": 0}, "interval=0: it must be an integer, 1 or more"),
        ({"interval": 1.5}, "interval=1.5: it must be an integer, 1 or more"),
        ({"min_step": -1}, "min_step=-1: it must be an integer, 0 or more"),
        ({"min_trials": True}, "min_trials=True: it must be an integer, 1 or more"),
    ],
)
def test_invalid_median_arguments_are_refused_with_the_rule(arguments, problem):
    with pytest.raises(ArgumentError) as refused:
        MedianStop(**arguments)
    assert str(refused.value) == problem


def test_median_stopper_advises_when_trials_are_too_few_to_compare():
    assert "stops no trial before 10 have ended, so none of 10" in MedianStop().advice(10)
    assert (
        'stopper_args={"min_trials": 3} lets it compare earlier (es_min=3 in a configuration of Maggy)'
        in MedianStop().advice(10)
    )
    assert MedianStop().advice(11) == "" and MedianStop(3).advice(10) == ""
