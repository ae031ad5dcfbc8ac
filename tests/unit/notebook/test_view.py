"""Tests of the view that is built from a run's events."""

from __future__ import annotations

import math

import pytest

from hopsml.cluster.driver.run_state import Change
from hopsml.cluster.gang.events import Phase
from hopsml.errors import RunCancelled, WorkerFailed
from hopsml.notebook.run_timeline import KEPT, LOG_LINES, RATE_WINDOW_S, MetricHistory, RunTimeline, plain_line
from hopsml.notebook.run_view import METRICS, ROWS, TAIL_LINES
from hopsml.notebook.view import StageView, View, format_number
from tests.unit.notebook.timelines import (
    STARTED_S,
    closed,
    column,
    forming,
    members,
    running,
    stopping,
    view_at,
    waiting,
)

pytestmark = pytest.mark.fast


def failure(**more: str) -> WorkerFailed:
    return WorkerFailed("a long message", rank=1, host="node-1", cause="ValueError: bad", **more)


# -- stages and what is waited for


def test_waiting_run_shows_what_it_waits_for_and_since_when() -> None:
    view = view_at(waiting(), at=STARTED_S + 12.5)
    assert (view.state, view.waits_for) == ("WAITING", "executors: 1 of 2 agents are connected")
    assert view.stages == (StageView("executors", 12.5, True),)


def test_requested_workers_are_shown_before_the_coordinator_reports() -> None:
    timeline = RunTimeline(STARTED_S)
    timeline.enter_phase(Phase.WAITING, STARTED_S)
    assert view_at(timeline, size=3).waits_for == "executors: 3 workers are asked for"


def test_first_four_workers_that_have_not_started_are_named() -> None:
    assert view_at(forming(), members("RUNNING", "STARTING")).waits_for == (
        "rank 1 on node-1 to import and begin the training function"
    )
    many = view_at(forming(), members(*["STARTING"] * 7)).waits_for
    assert many.startswith("rank 0 on node-0, ") and "rank 3 on node-3 and 3 more to" in many


def test_stages_have_durations_and_the_last_one_is_active() -> None:
    stages = view_at(running(), at=STARTED_S + 8).stages
    assert stages == (
        StageView("executors", 2.0, False),
        StageView("start", 3.0, False),
        StageView("training", 3.0, True),
    )


def test_run_waits_only_for_workers_that_have_not_finished() -> None:
    assert view_at(running(), members("RUNNING", "RUNNING")).waits_for == ""
    assert view_at(running(), members("FINISHED", "RUNNING")).waits_for == "rank 1 on node-1 to finish"


def test_closing_run_waits_for_its_workers_and_then_for_its_files() -> None:
    timeline = stopping()
    assert (
        view_at(timeline).waits_for == "the end of the workers and their last files"
        and view_at(timeline).state == "CLOSING"
    )
    timeline.handle(Change("end"), Phase.FINISHED, STARTED_S + 10)
    assert view_at(timeline).waits_for == "the last files of the run directory" and view_at(timeline).state == "CLOSING"


def test_run_with_an_unattributed_failure_waits_for_the_first_report() -> None:
    timeline = running()
    timeline.handle(Change("phase", text="finding out who failed first"), Phase.SETTLING, STARTED_S + 8)
    assert (
        view_at(timeline).waits_for == "the report of the worker that failed first"
        and view_at(timeline).state == "CLOSING"
    )


def test_elapsed_time_stops_at_the_end_of_the_run() -> None:
    timeline = closed(Phase.FINISHED, accuracy=0.5)
    assert view_at(timeline, at=STARTED_S + 11).seconds == view_at(timeline, at=STARTED_S + 500).seconds == 11.0
    assert not any(stage.active for stage in view_at(timeline).stages) and view_at(timeline).waits_for == ""


# -- numbers


def test_step_rate_and_latest_metrics_are_shown() -> None:
    view = view_at(running())
    assert view.numbers == (("step", "40"), ("steps/s", "20.0")) and view.progress is None
    (loss,) = view.curves
    assert (loss.name, loss.low, loss.high, loss.last) == ("loss", "0.3333", "1", "0.3333")


def test_step_rate_covers_the_last_seconds() -> None:
    timeline, phase = running(), Phase.RUNNING
    for k in range(40):
        timeline.handle(Change("report", 0, step=40 + k, time=STARTED_S + 8 + k), phase, STARTED_S)
    assert timeline.steps_per_second() == pytest.approx(1.0) and RATE_WINDOW_S < 40


def test_restarted_step_count_gives_no_negative_rate() -> None:
    timeline = running()
    timeline.handle(Change("report", 0, step=1, time=STARTED_S + 9), Phase.RUNNING, STARTED_S)
    assert timeline.steps_per_second() == 0.0 and timeline.step == 1
    timeline.handle(Change("report", 0, step=11, time=STARTED_S + 10), Phase.RUNNING, STARTED_S)
    assert timeline.steps_per_second() == 10.0


def test_reports_without_a_step_or_of_another_rank_do_not_change_the_step() -> None:
    timeline = running()
    timeline.handle(Change("report", 1, step=999, metrics={"loss": 9.0}), Phase.RUNNING, STARTED_S)
    timeline.handle(Change("report", 0, metrics={"lr": 0.5}), Phase.RUNNING, STARTED_S)
    assert timeline.step == 40 and view_at(timeline).numbers[2:] == (("lr", "0.5"),)


def test_returned_numbers_and_short_texts_are_shown() -> None:
    view = view_at(
        closed(Phase.FINISHED, accuracy=0.98765, kept=True, digest="ab12", curve=[1, 2], log="x/log", t="x" * 99)
    )
    assert view.result == (("accuracy", "0.9877"), ("kept", "True"), ("digest", "ab12"))


def test_number_and_length_of_metrics_are_bounded() -> None:
    timeline = running()
    timeline.handle(Change("report", 0, metrics={f"m{k}" * 30: "v" * 500 for k in range(51)}), Phase.RUNNING, STARTED_S)
    shown = view_at(timeline).numbers[2:]  # behind steps and their rate
    assert len(shown) == METRICS + 1 and shown[-1] == ("…", f"{51 - METRICS} more")
    assert max(len(text) for pair in shown for text in pair) <= 60


@pytest.mark.parametrize(
    ("value", "text"), [(0.000012345, "1.234e-05"), (float("nan"), "nan"), (7, "7"), (None, "None"), ("a", "a")]
)
def test_numbers_are_formatted_briefly(value: object, text: str) -> None:
    assert format_number(value) == text


# -- how far, and how long it will take


def progress_at(timeline: RunTimeline, step: int, at: float, total: int = 100, unit: str = "step") -> View:
    change = Change("progress", 0, unit, step=step, total=total, time=at)
    timeline.handle(change, timeline.stages[-1].phase, at)
    return view_at(timeline, at=at)


def test_progress_bar_is_shown_only_if_the_worker_reports_a_total() -> None:
    timeline = running()
    assert view_at(timeline).progress is None
    progress_at(timeline, 0, STARTED_S + 8)
    progress = progress_at(timeline, 40, STARTED_S + 12).progress
    assert progress is not None and progress.share == 0.4
    assert (
        progress.facts == ("step 40 of 100", "20.0 steps/s", "40 %", "about 6 s left")
        and view_at(timeline).numbers == ()
    )


def test_remaining_time_counts_down_and_is_hidden_after_a_long_pause() -> None:
    timeline = running()
    for k in range(5):
        progress_at(timeline, 10 * k, STARTED_S + 8 + k)
    assert timeline.progress is not None and timeline.progress.seconds_left(STARTED_S + 12) == pytest.approx(6.0)
    assert timeline.progress.seconds_left(STARTED_S + 14) == pytest.approx(4.0)
    assert timeline.progress.seconds_left(STARTED_S + 40) is None


def test_remaining_time_includes_time_between_epochs() -> None:
    """Ten steps in a second, then a validation of nine."""
    timeline = running()
    for epoch in range(3):
        for step in range(11):
            view = progress_at(timeline, 10 * epoch + step, STARTED_S + 10 + 10 * epoch + step / 10)
    assert view.progress is not None and view.progress.facts[-1] == "about 50 s left"


def test_new_fit_or_generation_restarts_the_time_estimate() -> None:
    timeline = running()
    progress_at(timeline, 90, STARTED_S + 8)
    progress_at(timeline, 100, STARTED_S + 9)
    assert progress_at(timeline, 1, STARTED_S + 10).progress.facts[-1] == "1 %"  # type: ignore[union-attr]
    progress_at(timeline, 11, STARTED_S + 11)
    timeline.handle(Change("phase", text="ending a generation"), Phase.REFORMING, STARTED_S + 12)
    timeline.handle(Change("phase", text="running"), Phase.RUNNING, STARTED_S + 60)
    assert progress_at(timeline, 12, STARTED_S + 61).progress.facts[-1] == "12 %"  # type: ignore[union-attr]
    assert progress_at(timeline, 22, STARTED_S + 62).progress.facts[-1] == "about 8 s left"  # type: ignore[union-attr]


def test_epochs_are_shown_if_the_number_of_steps_is_unknown() -> None:
    timeline = running()
    assert progress_at(timeline, 3, STARTED_S + 9, total=10, unit="epoch").progress.facts[0] == "epoch 3 of 10"  # type: ignore[union-attr]


def test_progress_bar_of_a_cancelled_run_remains_and_a_finished_run_has_none() -> None:
    timeline = running()
    progress_at(timeline, 40, STARTED_S + 8)
    timeline.handle(Change("closed", error=RunCancelled("enough")), Phase.CANCELLED, STARTED_S + 9)
    view = view_at(timeline)
    assert view.progress is not None and view.progress.facts == ("step 40 of 100", "20.0 steps/s", "40 %")
    timeline.error = None
    assert view_at(timeline).progress is None


# -- learning curves


def test_reduced_metric_history_retains_extremes_and_the_newest_value() -> None:
    history = MetricHistory()
    for step in range(20_000):
        history.add(step, 50.0 if step == 7_777 else -50.0 if step == 3_333 else step / 20_000)
    assert len(history.points) <= KEPT and history.points[0][0] == 0 and history.points[-1] == (19_999, 19_999 / 20_000)
    assert {-50.0, 50.0} <= {value for _, value in history.points} and (history.low, history.high) == (-50.0, 50.0)
    assert [at for at, _ in history.points] == sorted({at for at, _ in history.points})


def test_batch_metrics_are_drawn_until_there_are_two_epochs() -> None:
    timeline = running()

    def reported(step: int, **metrics: float) -> list[str]:
        timeline.handle(
            Change("report", 0, metrics=metrics, step=step, time=STARTED_S + 9), Phase.RUNNING, STARTED_S + 9
        )
        return [curve.name for curve in view_at(timeline).curves]

    timeline.histories.clear()
    assert reported(41, batch_loss=0.9) == [] and reported(42, batch_loss=0.8) == ["batch_loss"]
    assert reported(43, loss=0.8) == ["batch_loss"]
    assert reported(44, batch_loss=0.7) == ["batch_loss"] and reported(45, loss=0.7) == ["loss"]


def test_repeated_steps_are_drawn_once_and_another_fit_is_appended() -> None:
    def reported(*steps: int) -> RunTimeline:
        timeline = running()
        for step in steps:
            change = Change("report", 0, metrics={"acc": float(step)}, step=step, time=STARTED_S + step)
            timeline.handle(change, Phase.RUNNING, STARTED_S + 10)
        return timeline

    first = reported(50, 60, 10, 20)
    assert [at for at, _ in first.histories["acc"].points] == [50, 60, 70, 80]
    again = reported(50, 60, 70)
    again.handle(Change("phase", text=""), Phase.REFORMING, STARTED_S + 20)
    again.handle(Change("report", 0, metrics={"acc": 0.0}, step=55, time=STARTED_S + 21), Phase.RUNNING, STARTED_S + 21)
    assert [at for at, _ in again.histories["acc"].points] == [50, 55]


def test_texts_booleans_constants_and_nan_metrics_have_no_curve() -> None:
    timeline = running()
    for step in (50, 60):
        metrics = {"who": "me", "ok": True, "lr": 0.1, "diverged": math.nan, "half": math.nan if step == 50 else 1.0}
        timeline.handle(Change("report", 0, metrics=metrics, step=step, time=STARTED_S), Phase.RUNNING, STARTED_S + 9)
    view = view_at(timeline)
    assert [curve.name for curve in view.curves] == ["loss"]
    assert dict(view.numbers[1:]) == {"who": "me", "ok": "True", "lr": "0.1", "diverged": "nan", "half": "1"}


# -- workers


def test_worker_table_is_limited_and_counts_the_remaining_workers() -> None:
    found = members(*["RUNNING"] * 60, "FAILED")
    view = view_at(running(), found)
    assert len(view.table.rows) == ROWS and column(view, "state")[-1] == "FAILED" and column(view, "rank")[-1] == "60"
    assert view.table.more == f"{61 - ROWS} more: {61 - ROWS} RUNNING"


def test_gpus_and_steps_of_workers_are_shown() -> None:
    found = members("RUNNING", "RUNNING")
    found[1].gpu_indices, found[1].step = (2, 3), 17
    view = view_at(running(), found)
    assert column(view, "GPUs") == ["–", "2,3"] and column(view, "step") == ["–", "17"]


def test_workers_running_at_a_failure_are_shown_as_stopped_or_lost() -> None:
    timeline = closed(Phase.FAILED, failure())
    assert column(view_at(timeline, members("RUNNING", "RUNNING")), "state") == ["STOPPED", "LOST"]
    assert column(view_at(timeline, members("RUNNING", "FAILED")), "state") == ["STOPPED", "FAILED"]


def add_sample(timeline: RunTimeline, rank: int, cpu: float, memory: float, **more: float) -> None:
    values = {"cpu_utilization_percentage": cpu, "memory_usage_megabytes": memory, **more}
    timeline.handle(Change("system", rank, metrics=values), timeline.stages[-1].phase, STARTED_S + 9)


def test_cpu_memory_and_gpu_use_of_each_worker_are_shown() -> None:
    timeline, found = running(), members("RUNNING", "RUNNING")
    add_sample(timeline, 0, 182.4, 1312.0)
    add_sample(timeline, 1, 7.6, 84.0, gpu_0_utilization_percentage=80.0, gpu_1_utilization_percentage=90.0)
    view = view_at(timeline, found)
    assert view.table.columns == ("rank", "state", "CPU", "memory", "GPU use", "host", "executor")
    shown = [column(view, name) for name in ("CPU", "memory", "GPU use")]
    assert shown == [["182 %", "8 %"], ["1.3 GB", "84 MB"], ["–", "85 %"]]


def test_ended_run_shows_mean_and_peak_of_its_last_generation() -> None:
    timeline = running()
    add_sample(timeline, 0, 999.0, 9999.0)
    timeline.enter_phase(Phase.REFORMING, STARTED_S + 9)
    for cpu, memory in ((100.0, 500.0), (200.0, 400.0)):
        add_sample(timeline, 0, cpu, memory)
    timeline.handle(Change("closed"), Phase.FINISHED, STARTED_S + 10)
    view = view_at(timeline, members("FINISHED"))
    assert (column(view, "CPU, mean"), column(view, "memory, peak")) == (["150 %"], ["500 MB"])
    assert "CPU" not in view.table.columns


def test_unmeasured_memory_is_not_shown_as_zero() -> None:
    timeline = running()
    add_sample(timeline, 0, 20.0, 0.0)
    timeline.handle(Change("closed"), Phase.FINISHED, STARTED_S + 10)
    view = view_at(timeline, members("FINISHED"))
    assert column(view, "CPU, mean") == ["20 %"] and "memory, peak" not in view.table.columns


def test_elastic_run_shows_group_changes_and_merges_repeated_stages() -> None:
    timeline = running()
    for generation in range(3):
        for k, phase in enumerate((Phase.PARKING, Phase.REFORMING, Phase.FORMING, Phase.RUNNING)):
            timeline.handle(Change("phase", text=phase.value), phase, STARTED_S + 10 + 10 * generation + k)
            view = view_at(
                timeline, members("RUNNING", "STARTING" if phase is Phase.FORMING else "RUNNING"), at=STARTED_S + 60
            )
            assert view.state == phase.state and bool(view.waits_for) == (phase is not Phase.RUNNING)
    assert [stage.name for stage in view.stages] == ["executors", "start ×4", "training ×4", "changing ×6"]
    assert [stage.active for stage in view.stages] == [False, False, True, False]


# -- trouble


def test_failed_run_shows_the_log_of_the_failed_rank() -> None:
    timeline = closed(Phase.FAILED, failure(log_tail="\n".join(f"line {k}" for k in range(100)), remote_traceback="no"))
    timeline.handle(Change("log", 0, "the chief says\n"), Phase.FAILED, STARTED_S)
    view = view_at(timeline)
    assert view.state == "FAILED" and view.cause == "rank 1 on node-1: ValueError: bad"
    assert view.log_title == "end of the log of rank 1"
    assert len(view.log) == TAIL_LINES and view.log[-1] == "line 99"


def test_failed_run_without_a_log_shows_the_traceback() -> None:
    assert view_at(closed(Phase.FAILED, failure(remote_traceback="Traceback:\n  x"))).log == ("Traceback:", "  x")
    view = view_at(closed(Phase.FAILED, failure()))
    assert view.log == () and view.log_title == ""


def test_details_in_the_displayed_error_are_not_repeated_in_the_view() -> None:
    killed = closed(Phase.FAILED, failure(log_tail="line 1"))
    view = view_at(killed, members("RUNNING", "FAILED"), is_told=True)
    assert (view.cause, view.log, view.log_title) == ("", (), "") and view.state == "FAILED"
    assert column(view, "state") == ["STOPPED", "FAILED"]
    one = "Traceback (most recent call last):\n  x\n"
    for traceback in (one, f"{one}\nDuring handling of the above exception, another exception occurred:\n\n{one}"):
        raised = closed(Phase.FAILED, failure(log_tail=f"printed\n{traceback}\n", remote_traceback=traceback))
        assert "  x" in view_at(raised).log and view_at(raised, is_told=True).log == ("printed",)


def test_cancelled_run_is_shown_as_cancelled_and_other_errors_with_their_text() -> None:
    view = view_at(closed(Phase.CANCELLED, RunCancelled("run app_1 was cancelled: interrupted")))
    assert (view.state, view.cause) == ("CANCELLED", "run app_1 was cancelled: interrupted")
    view = view_at(closed(Phase.FINISHED, ValueError("metric_key='a' is missing")))
    assert (view.state, view.cause) == ("FAILED", "metric_key='a' is missing")


def test_notes_are_shown_once_and_the_latest_are_retained() -> None:
    timeline = running()
    for text in ("a", "a", *"bcdefg"):
        timeline.handle(Change("note", text=text), Phase.RUNNING, STARTED_S)
    assert view_at(timeline).notes == tuple("bcdefg")


def test_log_of_the_chief_shows_its_last_lines_as_in_a_terminal() -> None:
    timeline = running()
    for text in (
        "one\ntw",
        "o\n",
        "\x1b[31mred\x1b[0m\n10%\r50%\r100%\n",
        "\n\n",
        *(f"l{k}\n" for k in range(5)),
        "open",
    ):
        timeline.handle(Change("log", 0, text), Phase.RUNNING, STARTED_S)
    timeline.handle(Change("log", 1, "another rank\n"), Phase.RUNNING, STARTED_S)
    assert view_at(timeline).log == ("two", "red", "100%", "l0", "l1", "l2", "l3", "l4") and LOG_LINES == 8
    timeline.handle(Change("closed"), Phase.FINISHED, STARTED_S)
    assert view_at(timeline).log[-1] == "open"


def test_informational_framework_messages_are_omitted_from_the_log() -> None:
    timeline = running()
    lines = [
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
        "I0000 00:00:1795232028.118415   21948 port.cc:153] oneDNN custom operations are on",
        "2026-11-20 10:00:00.123456: I tensorflow/core/platform/cpu_feature_guard.cc:210] This binary is optimized",
        "E0000 00:00:1795232028.118415   21948 collective.cc:1] broken",
        "I was printed by the user",
    ]
    timeline.handle(Change("log", 0, "\n".join(lines) + "\n"), Phase.RUNNING, STARTED_S)
    assert view_at(timeline).log == tuple(lines[3:])


def test_endless_log_line_is_cut() -> None:
    timeline = running()
    for _ in range(50):
        timeline.handle(Change("log", 0, "x" * 1000), Phase.RUNNING, STARTED_S)
    timeline.handle(Change("log", 0, "\n"), Phase.RUNNING, STARTED_S)
    assert len(view_at(timeline).log[0]) == 160 and view_at(timeline).log[0].endswith("…")


@pytest.mark.parametrize(
    ("line", "shown"), [("a\rb\r", "b"), ("\x1b[1;32mok\x1b[0m\x07", "ok"), ("a\tb", "a\tb"), ("", "")]
)
def test_terminal_sequences_are_removed_from_a_line(line: str, shown: str) -> None:
    assert plain_line(line) == shown
