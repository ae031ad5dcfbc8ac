"""Tests of the bounded wait of a report for its verdict, so that a stopped trial trains no further step."""

from __future__ import annotations

import contextlib
import pickle
import socket
import threading
from collections.abc import Callable, Iterator

import msgspec
import pytest

from hopsml.cluster.shared.framing import Frames, framed
from hopsml.errors import TrialStopped
from hopsml.search import messages
from hopsml.search.messages import EndTrial, GoOn, RunTrial, ToLane, TrialReported
from hopsml.training.trials import trial_reports
from hopsml.training.trials.lane_queue import AssignTrial, FromRunner, LaneQueue
from hopsml.training.trials.trial_reports import Channel, TrialReporter

pytestmark = pytest.mark.fast
LONG_S = 60.0
_decode: msgspec.msgpack.Decoder[FromRunner] = msgspec.msgpack.Decoder(FromRunner)


def run_trial(judged: bool = True) -> RunTrial:
    return RunTrial(7, 1, trial_id="t7", config=pickle.dumps({}), judged=judged)


class LaneEnd:
    """The lane's end of a runner's socket; answers each report as it is told."""

    def __init__(self) -> None:
        self.connection, theirs = socket.socketpair()
        self.channel = Channel(theirs)
        self.theirs = theirs
        self.reports: list[TrialReported] = []
        self.answer: Callable[[TrialReported], ToLane | None] = lambda report: None
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self) -> None:
        frames = Frames()
        while piece := self.connection.recv(1 << 16):
            for data in frames.feed(piece):
                report = _decode.decode(data)
                assert isinstance(report, TrialReported)
                self.reports.append(report)
                if (answer := self.answer(report)) is not None:
                    with contextlib.suppress(BrokenPipeError):  # the trial's process has closed its end meanwhile
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
def test_a_trial_that_is_to_end_ends_at_the_report_that_decided_it(lane: LaneEnd) -> None:
    lane.answer = lambda report: EndTrial(7, 1, "stop") if report.step == 2 else GoOn(7, 1, report.step)
    reporter = TrialReporter(run_trial(), lane.channel)
    reporter.broadcast(0.1)
    reporter.broadcast(0.2)
    with pytest.raises(TrialStopped):
        reporter.broadcast(0.3)
    assert [(report.step, report.waits) for report in lane.reports] == [(0, True), (1, True), (2, True)]


@pytest.mark.usefixtures("patient")
def test_an_answer_to_another_report_is_none(lane: LaneEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    lane.answer = lambda report: GoOn(7, 1, report.step - 1)
    monkeypatch.setattr(trial_reports, "MOST_WAIT_S", 0.01)
    reporter = TrialReporter(run_trial(), lane.channel)
    for _ in range(trial_reports.MOST_UNANSWERED + 2):
        reporter.broadcast(0.1)
    reporter.broadcast(0.2, step=90)
    waits = [report.waits for report in lane.reports]
    assert waits == [True] * trial_reports.MOST_UNANSWERED + [False] * (len(waits) - trial_reports.MOST_UNANSWERED)


def test_a_report_waits_for_a_share_of_the_time_since_the_one_before_and_only_where_somebody_judges(
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
def test_a_lane_that_is_gone_keeps_nobody_waiting() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.shutdown(socket.SHUT_WR)
        TrialReporter(run_trial(), Channel(theirs)).broadcast(0.1)  # returns


def test_the_lane_passes_an_answer_on_to_the_trial_that_runs() -> None:
    queue, later = LaneQueue(), RunTrial(8, 0, trial_id="t8", config=b"", isolated=True)
    queue.handle_driver_message(run_trial(), 0.0)
    queue.handle_driver_message(later, 0.0)
    assert queue.handle_driver_message(GoOn(7, 1, 3), 1.0) == [AssignTrial(GoOn(7, 1, 3))]
    assert queue.handle_driver_message(GoOn(8, 0, 3), 1.0) == queue.handle_driver_message(GoOn(7, 0, 3), 1.0) == []


def test_the_newest_report_is_the_last_of_the_history_however_many_there_were(
    lane: LaneEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_reports, "MOST_HISTORY", 3)
    reporter = TrialReporter(run_trial(judged=False), lane.channel)
    for value in range(6):
        reporter.broadcast(float(value))
    assert reporter.history == [(0, 0.0), (1, 1.0), (5, 5.0)]
