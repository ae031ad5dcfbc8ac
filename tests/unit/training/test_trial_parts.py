"""Tests of the parts of a trial: bound arguments, valid results, shared data, seeds, and reports that wait for a verdict."""

from __future__ import annotations

import contextlib
import math
import pickle
import random
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import pytest

import hopsml
from hopsml.cluster.shared.framing import FrameDecoder, framed
from hopsml.errors import ArgumentError, ArgumentTypeError, TrialStopped
from hopsml.search import messages
from hopsml.search.messages import EndTrial, GoOn, RunTrial, ToLane, TrialReported
from hopsml.training.trials import runner, trial_reports
from hopsml.training.trials.lane_queue import FromRunner, LaneQueue, SendToRunner
from hopsml.training.trials.trial import bind_arguments, check_parameters_exist
from hopsml.training.trials.trial_reports import LaneChannel, TrialReporter, score_of
from tests.helpers.clock import wait_until

LONG_S = 60.0
_decode: msgspec.msgpack.Decoder[FromRunner] = msgspec.msgpack.Decoder(FromRunner)
pytestmark = pytest.mark.fast
LOADS: list[str] = []


def run_trial(judged: bool = True) -> RunTrial:
    return RunTrial(7, 1, trial_id="t7", config=pickle.dumps({}), judged=judged)


class LaneEnd:
    """The slot's end of a runner's socket; answers each report as scripted."""

    def __init__(self) -> None:
        self.connection, theirs = socket.socketpair()
        self.channel = LaneChannel(theirs)
        self.theirs = theirs
        self.reports: list[TrialReported] = []
        self.answer: Callable[[TrialReported], ToLane | None] = lambda report: None
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self) -> None:
        frames = FrameDecoder()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the trial may have closed its end
            while piece := self.connection.recv(1 << 16):
                for data in frames.feed(piece):
                    report = _decode.decode(data)
                    assert isinstance(report, TrialReported)
                    self.reports.append(report)
                    if (answer := self.answer(report)) is not None:
                        self.connection.sendall(framed(messages.encode(answer)))

    def close(self) -> None:
        self.theirs.close()
        self.thread.join()
        self.connection.close()


@pytest.fixture
def lane() -> Iterator[LaneEnd]:
    end = LaneEnd()
    yield end
    end.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports wait as long as the answer takes, whatever the time between them."""
    monkeypatch.setattr(trial_reports, "MOST_WAIT_S", LONG_S)
    monkeypatch.setattr(trial_reports, "WAIT_SHARE", 1e12)


@pytest.mark.usefixtures("patient")
def test_trial_stops_at_the_report_that_decided_it(lane: LaneEnd) -> None:
    lane.answer = lambda report: EndTrial(7, 1, "stop") if report.step == 2 else GoOn(7, 1, report.step)
    reporter = TrialReporter(run_trial(), lane.channel)
    reporter.broadcast(0.1)
    reporter.broadcast(0.2)
    with pytest.raises(TrialStopped):
        reporter.broadcast(0.3)
    assert [(report.step, report.waits) for report in lane.reports] == [(0, True), (1, True), (2, True)]


@pytest.mark.usefixtures("patient")
def test_answer_to_another_report_is_ignored(lane: LaneEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    lane.answer = lambda report: GoOn(7, 1, report.step - 1)
    monkeypatch.setattr(trial_reports, "MOST_WAIT_S", 0.01)
    reporter = TrialReporter(run_trial(), lane.channel)
    for _ in range(trial_reports.MOST_UNANSWERED + 2):
        reporter.broadcast(0.1)
    reporter.broadcast(0.2, step=90)
    wait_until(lambda: len(lane.reports) == trial_reports.MOST_UNANSWERED + 3, "all reports")
    assert [report.waits for report in lane.reports] == [True] * trial_reports.MOST_UNANSWERED + [False] * 3


def test_report_waits_a_share_of_the_time_since_the_last_one_only_if_judged(
    lane: LaneEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(trial_reports.time, "monotonic", lambda: now[0])
    reporter, unjudged = TrialReporter(run_trial(), lane.channel), TrialReporter(run_trial(judged=False), lane.channel)
    for passed_s, expected_s in ((0.01, 0.0), (0.03, 0.003), (0.5, 0.05), (5.0, 0.1)):
        now[0] = 100.0 + passed_s
        assert reporter._patience_s() == pytest.approx(expected_s)
        assert unjudged._patience_s() == 0


@pytest.mark.usefixtures("patient")
def test_report_to_a_closed_lane_does_not_block() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.shutdown(socket.SHUT_WR)
        TrialReporter(run_trial(), LaneChannel(theirs)).broadcast(0.1)  # returns


def test_lane_forwards_an_answer_only_to_the_running_trial() -> None:
    queue, later = LaneQueue(), RunTrial(8, 0, trial_id="t8", config=b"", isolated=True)
    queue.handle_driver_message(run_trial(), 0.0)
    queue.handle_driver_message(later, 0.0)
    assert queue.handle_driver_message(GoOn(7, 1, 3), 1.0) == [SendToRunner(GoOn(7, 1, 3))]
    assert queue.handle_driver_message(GoOn(8, 0, 3), 1.0) == queue.handle_driver_message(GoOn(7, 0, 3), 1.0) == []


def test_history_limit_keeps_the_newest_report_last(lane: LaneEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_reports, "MOST_HISTORY", 3)
    reporter = TrialReporter(run_trial(judged=False), lane.channel)
    for value in range(6):
        reporter.broadcast(float(value))
    assert reporter.history == [(0, 0.0), (1, 1.0), (5, 5.0)]


def by_name(lr: float, layers: int = 2, *, reporter: Any = None) -> None: ...
def every_argument(hparams: dict[str, Any], reporter: Any, data: str = "") -> None: ...
def anything(**rest: Any) -> None: ...
def with_budget(lr: float, budget: int) -> None: ...


@pytest.mark.parametrize(
    ("function", "config", "expected"),
    [
        (by_name, {"lr": 0.1}, {"lr": 0.1, "reporter": "R"}),
        (by_name, {"lr": 0.1, "layers": 3, "budget": 9}, {"lr": 0.1, "layers": 3, "reporter": "R"}),
        (every_argument, {"lr": 0.1, "x": 1}, {"hparams": {"lr": 0.1, "x": 1}, "reporter": "R", "data": "fixed"}),
        (anything, {"lr": 0.1}, {"lr": 0.1, "data": "fixed"}),
        (with_budget, {"lr": 0.1, "budget": 4}, {"lr": 0.1, "budget": 4}),
    ],
)
def test_trial_arguments_are_bound_by_parameter_names(function: Any, config: Any, expected: Any) -> None:
    assert bind_arguments(function, {"data": "fixed"}, config, "R") == expected


def test_value_without_parameter_and_parameter_without_value_raise() -> None:
    with pytest.raises(ArgumentTypeError, match=r"by_name has no parameter rate; it has lr, layers, reporter"):
        bind_arguments(by_name, {}, {"lr": 1, "rate": 2}, None)
    with pytest.raises(ArgumentTypeError, match=r"with_budget needs budget, which the search space does not have"):
        bind_arguments(with_budget, {}, {"lr": 1}, None)
    check_parameters_exist(every_argument, ["anything"])
    check_parameters_exist(anything, ["anything"])


@pytest.mark.parametrize(
    ("value", "metric", "expected"),
    [
        (3, "", 3.0),
        (np.float32(0.5), "accuracy", 0.5),
        ({"accuracy": np.array([0.25])}, "", 0.25),
        ({"accuracy": 1, "loss": 2}, "loss", 2.0),
        ({"metric": 1, "loss": 2}, "", 1.0),
    ],
)
def test_trial_result_is_a_number_or_a_dict_with_one(value: Any, metric: str, expected: float) -> None:
    assert score_of(value, metric) == expected


def test_nan_is_a_valid_trial_result() -> None:
    assert math.isnan(score_of({"loss": float("nan")}, "loss"))


@pytest.mark.parametrize(
    ("value", "metric", "message"),
    [
        (None, "", "returned nothing; a search needs a number"),
        ("0.5", "", "a value of type str: '0.5'"),
        ({"loss": "low"}, "loss", "'loss' of type str"),
        (
            {"loss": 1},
            "accuracy",
            "the search is about 'accuracy', which is not among the values that the training function returned",
        ),
        ({"a": 1, "b": 2}, "", "which is not among the values that the training function returned \\('a', 'b'\\)"),
        ({}, "", "training function returned .nothing."),
        (True, "", "a value of type bool"),
        (np.ones(3), "", "type ndarray"),
    ],
)
def test_invalid_trial_result_error_describes_a_valid_one(value: Any, metric: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        score_of(value, metric)


def a_training_function(scale: int) -> list[str]:
    def load(name: str) -> list[str]:
        LOADS.append(name)
        return [name, str(scale)]

    return hopsml.cached(load, "images")


def test_cached_value_is_loaded_once_per_code_captured_values_and_arguments() -> None:
    LOADS.clear()
    assert a_training_function(1) is a_training_function(1) and LOADS == ["images"]
    assert a_training_function(2) == ["images", "2"] and LOADS == ["images", "images"]


def test_cached_value_depends_on_captured_variables() -> None:
    def load_with(number: int) -> Any:
        return hopsml.cached(lambda: [number])

    assert load_with(1) is load_with(1) and load_with(2) == [2]
    with pytest.raises(ArgumentError, match="cannot be compared"):
        hopsml.cached(len, threading.Lock())


def test_concurrent_cached_calls_load_once_and_errors_are_not_cached() -> None:
    calls: list[int] = []
    barrier = threading.Barrier(4)

    def load() -> int:
        calls.append(1)
        if len(calls) == 1:
            raise OSError("the store is away")
        return 7

    def ask() -> None:
        barrier.wait()
        try:
            values.append(hopsml.cached(_Loader(load)))
        except OSError:
            values.append(None)

    values: list[Any] = []
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, values)) == ["7", "7", "7", "None"] and len(calls) == 2


class _Loader:
    """Calls what it holds; the same to all who ask, whatever that does."""

    def __init__(self, load: Any) -> None:
        self.load = load

    def __call__(self) -> Any:
        return self.load()

    def __reduce__(self) -> Any:
        return _Loader, (None,)


def test_trial_seeds_differ_by_trial_and_are_reproducible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPSML_SEED", "1")
    seeds = [runner.trial_seed(5, number) for number in range(100)]
    assert len(set(seeds)) == 100 and seeds == [runner.trial_seed(5, number) for number in range(100)]
    runner.seed_generators(seeds[0])
    first = random.random(), np.random.rand()
    runner.seed_generators(seeds[0])
    assert (random.random(), np.random.rand()) == first


def test_trial_stop_is_not_caught_by_except_exception() -> None:
    def train() -> None:
        try:
            raise TrialStopped("pause", 4)
        except Exception:  # noqa: BLE001 as people write it
            print("swallowed")

    with pytest.raises(TrialStopped, match=r"paused: it may go on later, from its newest checkpoint \(step 4\)"):
        train()


def test_trial_outside_of_a_search_is_none() -> None:
    assert hopsml.trial() is None


def test_cached_value_depends_on_nested_code_and_sets() -> None:
    """The code of nested functions counts, too, and the elements of sets."""
    doubled, trebled = (
        lambda: [number * 2 for number in range(3)],
        lambda: [number * 3 for number in range(3)],
    )
    of_a, of_b = lambda word: word in {"a"}, lambda word: word in {"b"}
    assert [hopsml.cached(doubled), hopsml.cached(trebled)] == [[0, 2, 4], [0, 3, 6]]
    assert [hopsml.cached(of_a, "a"), hopsml.cached(of_b, "a")] == [True, False]
