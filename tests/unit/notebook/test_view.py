"""Tests of the view that is built from a run's events."""

from __future__ import annotations

import math

import pytest

from hopsml.cluster.driver.run_state import Change
from hopsml.cluster.gang.events import Phase
from hopsml.errors import RunCancelled, WorkerFailed
from hopsml.notebook.run_timeline import KEPT, LOG_LINES, RATE_WINDOW_S, MetricHistory, RunTimeline, plain_line
from hopsml.notebook.run_view import METRICS, ROWS, TAIL_LINES
from hopsml.notebook.view import StageView, View, number
from tests.unit.notebook.stories import BEGAN, closed, column, forming, look, members, running, stopping, waiting

pytestmark = pytest.mark.fast


def failure(**more: str) -> WorkerFailed:
    return WorkerFailed("a long message", rank=1, host="node-1", cause="ValueError: bad", **more)


# -- stages and what is waited for


def test_a_run_that_waits_says_for_what_and_since_when() -> None:
    view = look(waiting(), at=BEGAN + 12.5)
    assert (view.state, view.waits_for) == ("WAITING", "executors: 1 of 2 agents are connected")
    assert view.stages == (StageView("executors", 12.5, True),)


def test_before_the_coordinator_has_said_anything_the_wish_is_told() -> None:
    story = RunTimeline(BEGAN)
    story.enter(Phase.WAITING, BEGAN)
    assert look(story, size=3).waits_for == "executors: 3 workers are asked for"


def test_workers_that_have_not_begun_are_named_the_first_four_of_many() -> None:
    assert look(forming(), members("RUNNING", "STARTING")).waits_for == (
        "rank 1 on node-1 to import and begin the training function"
    )
    many = look(forming(), members(*["STARTING"] * 7)).waits_for
    assert many.startswith("rank 0 on node-0, ") and "rank 3 on node-3 and 3 more to" in many


def test_stages_keep_their_times_and_the_last_one_goes_on() -> None:
    stages = look(running(), at=BEGAN + 8).stages
    assert stages == (
        StageView("executors", 2.0, False),
        StageView("start", 3.0, False),
        StageView("training", 3.0, True),
    )


def test_nothing_is_waited_for_while_all_train_and_the_last_ones_are_when_others_have_finished() -> None:
    assert look(running(), members("RUNNING", "RUNNING")).waits_for == ""
    assert look(running(), members("FINISHED", "RUNNING")).waits_for == "rank 1 on node-1 to finish"


def test_the_end_of_the_workers_and_then_the_last_files_are_waited_for() -> None:
    story = stopping()
    assert look(story).waits_for == "the end of the workers and their last files" and look(story).state == "CLOSING"
    story.handle(Change("end"), Phase.FINISHED, BEGAN + 10)
    assert look(story).waits_for == "the last files of the run directory" and look(story).state == "CLOSING"


def test_a_failure_that_is_being_found_out_is_told() -> None:
    story = running()
    story.handle(Change("phase", text="finding out who failed first"), Phase.SETTLING, BEGAN + 8)
    assert look(story).waits_for == "the report of the worker that failed first" and look(story).state == "CLOSING"


def test_the_clock_stops_with_the_run() -> None:
    story = closed(Phase.FINISHED, accuracy=0.5)
    assert look(story, at=BEGAN + 11).seconds == look(story, at=BEGAN + 500).seconds == 11.0
    assert not any(stage.active for stage in look(story).stages) and look(story).waits_for == ""


# -- numbers


def test_steps_and_rate_and_the_latest_metrics() -> None:
    view = look(running())
    assert view.numbers == (("step", "40"), ("steps/s", "20.0")) and view.progress is None
    (loss,) = view.curves
    assert (loss.name, loss.low, loss.high, loss.last) == ("loss", "0.3333", "1", "0.3333")


def test_the_rate_is_that_of_the_last_seconds() -> None:
    story, phase = running(), Phase.RUNNING
    for k in range(40):
        story.handle(Change("report", 0, step=40 + k, time=BEGAN + 8 + k), phase, BEGAN)
    assert story.steps_per_second() == pytest.approx(1.0) and RATE_WINDOW_S < 40


def test_steps_that_begin_anew_give_no_negative_rate() -> None:
    story = running()
    story.handle(Change("report", 0, step=1, time=BEGAN + 9), Phase.RUNNING, BEGAN)
    assert story.steps_per_second() == 0.0 and story.step == 1
    story.handle(Change("report", 0, step=11, time=BEGAN + 10), Phase.RUNNING, BEGAN)
    assert story.steps_per_second() == 10.0


def test_reports_without_a_step_or_of_another_rank_move_nothing() -> None:
    story = running()
    story.handle(Change("report", 1, step=999, metrics={"loss": 9.0}), Phase.RUNNING, BEGAN)
    story.handle(Change("report", 0, metrics={"lr": 0.5}), Phase.RUNNING, BEGAN)
    assert story.step == 40 and look(story).numbers[2:] == (("lr", "0.5"),)


def test_what_the_function_returned_is_shown_without_what_is_no_number_or_short_text() -> None:
    view = look(
        closed(Phase.FINISHED, accuracy=0.98765, kept=True, digest="ab12", curve=[1, 2], log="x/log", t="x" * 99)
    )
    assert view.result == (("accuracy", "0.9877"), ("kept", "True"), ("digest", "ab12"))


def test_many_metrics_and_long_ones_stay_in_bounds() -> None:
    story = running()
    story.handle(Change("report", 0, metrics={f"m{k}" * 30: "v" * 500 for k in range(51)}), Phase.RUNNING, BEGAN)
    shown = look(story).numbers[2:]  # behind steps and their rate
    assert len(shown) == METRICS + 1 and shown[-1] == ("…", f"{51 - METRICS} more")
    assert max(len(text) for pair in shown for text in pair) <= 60


@pytest.mark.parametrize(
    ("value", "text"), [(0.000012345, "1.234e-05"), (float("nan"), "nan"), (7, "7"), (None, "None"), ("a", "a")]
)
def test_numbers_are_short(value: object, text: str) -> None:
    assert number(value) == text


# -- how far, and how long it will take


def told(story: RunTimeline, step: int, at: float, total: int = 100, unit: str = "step") -> View:
    change = Change("progress", 0, unit, step=step, total=total, time=at)
    story.handle(change, story.stages[-1].phase, at)
    return look(story, at=at)


def test_a_bar_where_the_worker_says_how_many_steps_there_will_be_and_none_else() -> None:
    story = running()
    assert look(story).progress is None
    told(story, 0, BEGAN + 8)
    progress = told(story, 40, BEGAN + 12).progress
    assert progress is not None and progress.share == 0.4
    assert progress.facts == ("step 40 of 100", "20.0 steps/s", "40 %", "about 6 s left") and look(story).numbers == ()


def test_the_time_left_falls_between_two_reports_and_is_not_told_when_nothing_moves_for_long() -> None:
    story = running()
    for k in range(5):
        told(story, 10 * k, BEGAN + 8 + k)
    assert story.progress is not None and story.progress.seconds_left(BEGAN + 12) == pytest.approx(6.0)
    assert story.progress.seconds_left(BEGAN + 14) == pytest.approx(4.0)
    assert story.progress.seconds_left(BEGAN + 40) is None


def test_the_time_left_is_of_all_that_a_training_does_not_of_its_steps_alone() -> None:
    """Ten steps in a second, then a validation of nine."""
    story = running()
    for epoch in range(3):
        for step in range(11):
            view = told(story, 10 * epoch + step, BEGAN + 10 + 10 * epoch + step / 10)
    assert view.progress is not None and view.progress.facts[-1] == "about 50 s left"


def test_another_fit_and_another_generation_begin_their_time_anew() -> None:
    story = running()
    told(story, 90, BEGAN + 8)
    told(story, 100, BEGAN + 9)
    assert told(story, 1, BEGAN + 10).progress.facts[-1] == "1 %"  # type: ignore[union-attr]
    told(story, 11, BEGAN + 11)
    story.handle(Change("phase", text="ending a generation"), Phase.REFORMING, BEGAN + 12)
    story.handle(Change("phase", text="running"), Phase.RUNNING, BEGAN + 60)
    assert told(story, 12, BEGAN + 61).progress.facts[-1] == "12 %"  # type: ignore[union-attr]
    assert told(story, 22, BEGAN + 62).progress.facts[-1] == "about 8 s left"  # type: ignore[union-attr]


def test_epochs_are_told_where_nobody_knows_the_steps() -> None:
    story = running()
    assert told(story, 3, BEGAN + 9, total=10, unit="epoch").progress.facts[0] == "epoch 3 of 10"  # type: ignore[union-attr]


def test_the_bar_of_a_run_that_stopped_stays_where_it_was_and_one_that_finished_has_none() -> None:
    story = running()
    told(story, 40, BEGAN + 8)
    story.handle(Change("closed", error=RunCancelled("enough")), Phase.CANCELLED, BEGAN + 9)
    view = look(story)
    assert view.progress is not None and view.progress.facts == ("step 40 of 100", "20.0 steps/s", "40 %")
    story.error = None
    assert look(story).progress is None


# -- learning curves


def test_a_curve_holds_its_extremes_and_its_newest_value_whatever_is_left_out() -> None:
    history = MetricHistory()
    for step in range(20_000):
        history.add(step, 50.0 if step == 7_777 else -50.0 if step == 3_333 else step / 20_000)
    assert len(history.points) <= KEPT and history.points[0][0] == 0 and history.points[-1] == (19_999, 19_999 / 20_000)
    assert {-50.0, 50.0} <= {value for _, value in history.points} and (history.low, history.high) == (-50.0, 50.0)
    assert [at for at, _ in history.points] == sorted({at for at, _ in history.points})


def test_values_within_an_epoch_are_drawn_until_there_are_two_epochs() -> None:
    story = running()

    def reported(step: int, **metrics: float) -> list[str]:
        story.handle(Change("report", 0, metrics=metrics, step=step, time=BEGAN + 9), Phase.RUNNING, BEGAN + 9)
        return [curve.name for curve in look(story).curves]

    story.histories.clear()
    assert reported(41, batch_loss=0.9) == [] and reported(42, batch_loss=0.8) == ["batch_loss"]
    assert reported(43, loss=0.8) == ["batch_loss"]
    assert reported(44, batch_loss=0.7) == ["batch_loss"] and reported(45, loss=0.7) == ["loss"]


def test_steps_that_are_made_once_more_are_drawn_once_and_another_fit_follows_the_first() -> None:
    def reported(*steps: int) -> RunTimeline:
        story = running()
        for step in steps:
            change = Change("report", 0, metrics={"acc": float(step)}, step=step, time=BEGAN + step)
            story.handle(change, Phase.RUNNING, BEGAN + 10)
        return story

    first = reported(50, 60, 10, 20)
    assert [at for at, _ in first.histories["acc"].points] == [50, 60, 70, 80]
    again = reported(50, 60, 70)
    again.handle(Change("phase", text=""), Phase.REFORMING, BEGAN + 20)
    again.handle(Change("report", 0, metrics={"acc": 0.0}, step=55, time=BEGAN + 21), Phase.RUNNING, BEGAN + 21)
    assert [at for at, _ in again.histories["acc"].points] == [50, 55]


def test_texts_truth_values_constants_and_nothing_but_nan_are_no_curves() -> None:
    story = running()
    for step in (50, 60):
        metrics = {"who": "me", "ok": True, "lr": 0.1, "diverged": math.nan, "half": math.nan if step == 50 else 1.0}
        story.handle(Change("report", 0, metrics=metrics, step=step, time=BEGAN), Phase.RUNNING, BEGAN + 9)
    view = look(story)
    assert [curve.name for curve in view.curves] == ["loss"]
    assert dict(view.numbers[1:]) == {"who": "me", "ok": "True", "lr": "0.1", "diverged": "nan", "half": "1"}


# -- workers


def test_a_row_a_worker_and_the_rest_of_many_is_counted() -> None:
    found = members(*["RUNNING"] * 60, "FAILED")
    view = look(running(), found)
    assert len(view.table.rows) == ROWS and column(view, "state")[-1] == "FAILED" and column(view, "rank")[-1] == "60"
    assert view.table.more == f"{61 - ROWS} more: {61 - ROWS} RUNNING"


def test_gpus_and_steps_are_shown() -> None:
    found = members("RUNNING", "RUNNING")
    found[1].gpu_indices, found[1].step = (2, 3), 17
    view = look(running(), found)
    assert column(view, "GPUs") == ["–", "2,3"] and column(view, "step") == ["–", "17"]


def test_workers_whose_group_ended_before_them_were_stopped_and_the_one_that_vanished_is_lost() -> None:
    story = closed(Phase.FAILED, failure())
    assert column(look(story, members("RUNNING", "RUNNING")), "state") == ["STOPPED", "LOST"]
    assert column(look(story, members("RUNNING", "FAILED")), "state") == ["STOPPED", "FAILED"]


def sampled(story: RunTimeline, rank: int, cpu: float, memory: float, **more: float) -> None:
    values = {"cpu_utilization_percentage": cpu, "memory_usage_megabytes": memory, **more}
    story.handle(Change("system", rank, metrics=values), story.stages[-1].phase, BEGAN + 9)


def test_cpu_and_memory_of_each_worker_and_the_use_of_its_gpus() -> None:
    story, found = running(), members("RUNNING", "RUNNING")
    sampled(story, 0, 182.4, 1312.0)
    sampled(story, 1, 7.6, 84.0, gpu_0_utilization_percentage=80.0, gpu_1_utilization_percentage=90.0)
    view = look(story, found)
    assert view.table.columns == ("rank", "state", "CPU", "memory", "GPU use", "host", "executor")
    shown = [column(view, name) for name in ("CPU", "memory", "GPU use")]
    assert shown == [["182 %", "8 %"], ["1.3 GB", "84 MB"], ["–", "85 %"]]


def test_of_a_run_that_is_over_the_mean_and_the_peak_and_nothing_of_workers_that_were_there_before() -> None:
    story = running()
    sampled(story, 0, 999.0, 9999.0)
    story.enter(Phase.REFORMING, BEGAN + 9)
    for cpu, memory in ((100.0, 500.0), (200.0, 400.0)):
        sampled(story, 0, cpu, memory)
    story.handle(Change("closed"), Phase.FINISHED, BEGAN + 10)
    view = look(story, members("FINISHED"))
    assert (column(view, "CPU, mean"), column(view, "memory, peak")) == (["150 %"], ["500 MB"])
    assert "CPU" not in view.table.columns


def test_an_elastic_run_says_what_its_group_does_and_its_stages_stay_few() -> None:
    story = running()
    for generation in range(3):
        for k, phase in enumerate((Phase.PARKING, Phase.REFORMING, Phase.FORMING, Phase.RUNNING)):
            story.handle(Change("phase", text=phase.value), phase, BEGAN + 10 + 10 * generation + k)
            view = look(story, members("RUNNING", "STARTING" if phase is Phase.FORMING else "RUNNING"), at=BEGAN + 60)
            assert view.state == phase.state and bool(view.waits_for) == (phase is not Phase.RUNNING)
    assert [stage.name for stage in view.stages] == ["executors", "start ×4", "training ×4", "changing ×6"]
    assert [stage.active for stage in view.stages] == [False, False, True, False]


# -- trouble


def test_a_failure_shows_the_log_of_the_rank_that_failed_not_the_chiefs() -> None:
    story = closed(Phase.FAILED, failure(log_tail="\n".join(f"line {k}" for k in range(100)), remote_traceback="no"))
    story.handle(Change("log", 0, "the chief says\n"), Phase.FAILED, BEGAN)
    view = look(story)
    assert view.state == "FAILED" and view.cause == "rank 1 on node-1: ValueError: bad"
    assert view.log_title == "end of the log of rank 1"
    assert len(view.log) == TAIL_LINES and view.log[-1] == "line 99"


def test_without_a_log_the_traceback_is_shown_and_without_both_nothing() -> None:
    assert look(closed(Phase.FAILED, failure(remote_traceback="Traceback:\n  x"))).log == ("Traceback:", "  x")
    view = look(closed(Phase.FAILED, failure()))
    assert view.log == () and view.log_title == ""


def test_what_the_error_beside_the_display_says_is_not_said_twice() -> None:
    killed = closed(Phase.FAILED, failure(log_tail="line 1"))
    view = look(killed, members("RUNNING", "FAILED"), is_told=True)
    assert (view.cause, view.log, view.log_title) == ("", (), "") and view.state == "FAILED"
    assert column(view, "state") == ["STOPPED", "FAILED"]
    one = "Traceback (most recent call last):\n  x\n"
    for traceback in (one, f"{one}\nDuring handling of the above exception, another exception occurred:\n\n{one}"):
        raised = closed(Phase.FAILED, failure(log_tail=f"printed\n{traceback}\n", remote_traceback=traceback))
        assert "  x" in look(raised).log and look(raised, is_told=True).log == ("printed",)


def test_a_cancelled_run_is_cancelled_and_any_other_error_is_told_as_it_is() -> None:
    view = look(closed(Phase.CANCELLED, RunCancelled("run app_1 was cancelled: interrupted")))
    assert (view.state, view.cause) == ("CANCELLED", "run app_1 was cancelled: interrupted")
    view = look(closed(Phase.FINISHED, ValueError("metric_key='a' is missing")))
    assert (view.state, view.cause) == ("FAILED", "metric_key='a' is missing")


def test_notes_are_told_once_and_the_last_ones_are_kept() -> None:
    story = running()
    for text in ("a", "a", *"bcdefg"):
        story.handle(Change("note", text=text), Phase.RUNNING, BEGAN)
    assert look(story).notes == tuple("bcdefg")


def test_the_chiefs_output_its_last_lines_as_a_terminal_would_show_them() -> None:
    story = running()
    for text in (
        "one\ntw",
        "o\n",
        "\x1b[31mred\x1b[0m\n10%\r50%\r100%\n",
        "\n\n",
        *(f"l{k}\n" for k in range(5)),
        "open",
    ):
        story.handle(Change("log", 0, text), Phase.RUNNING, BEGAN)
    story.handle(Change("log", 1, "another rank\n"), Phase.RUNNING, BEGAN)
    assert look(story).log == ("two", "red", "100%", "l0", "l1", "l2", "l3", "l4") and LOG_LINES == 8
    story.handle(Change("closed"), Phase.FINISHED, BEGAN)
    assert look(story).log[-1] == "open"


def test_the_frameworks_own_chatter_is_left_out_and_its_errors_are_not() -> None:
    story = running()
    lines = [
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
        "I0000 00:00:1795232028.118415   21948 port.cc:153] oneDNN custom operations are on",
        "2026-11-20 10:00:00.123456: I tensorflow/core/platform/cpu_feature_guard.cc:210] This binary is optimized",
        "E0000 00:00:1795232028.118415   21948 collective.cc:1] broken",
        "I was printed by the user",
    ]
    story.handle(Change("log", 0, "\n".join(lines) + "\n"), Phase.RUNNING, BEGAN)
    assert look(story).log == tuple(lines[3:])


def test_a_line_that_never_ends_does_not_grow() -> None:
    story = running()
    for _ in range(50):
        story.handle(Change("log", 0, "x" * 1000), Phase.RUNNING, BEGAN)
    story.handle(Change("log", 0, "\n"), Phase.RUNNING, BEGAN)
    assert len(look(story).log[0]) == 160 and look(story).log[0].endswith("…")


@pytest.mark.parametrize(
    ("line", "shown"), [("a\rb\r", "b"), ("\x1b[1;32mok\x1b[0m\x07", "ok"), ("a\tb", "a\tb"), ("", "")]
)
def test_plain_lines(line: str, shown: str) -> None:
    assert plain_line(line) == shown
