"""From what happens to a run to what a person sees of it."""

from __future__ import annotations

import pytest

from hopsml.cluster.gang import Phase
from hopsml.cluster.run_state import Change
from hopsml.errors import RunCancelled, WorkerFailed
from hopsml.notebook.story import LOG_LINES, RATE_WINDOW_S, Story, plain_line
from hopsml.notebook.view import METRICS, ROWS, TAIL_LINES, StageView, number
from tests.notebook.stories import BEGAN, closed, forming, look, members, running, stopping, waiting

pytestmark = pytest.mark.fast


def failure(**more: str) -> WorkerFailed:
    return WorkerFailed("a long message", rank=1, host="node-1", cause="ValueError: bad", **more)


# -- stages and what is waited for


def test_a_run_that_waits_says_for_what_and_since_when() -> None:
    view = look(waiting(), at=BEGAN + 12.5)
    assert (view.state, view.waits_for) == ("starting", "executors: 1 of 2 agents there")
    assert view.stages == (StageView("executors", 12.5, True),)


def test_before_the_coordinator_has_said_anything_the_wish_is_told() -> None:
    story = Story(BEGAN)
    story.enter(Phase.WAITING, BEGAN)
    assert look(story, size=3).waits_for == "executors: 3 workers are asked for"


def test_workers_that_have_not_begun_are_named_the_first_four_of_many() -> None:
    assert look(forming(), members("running", "launched")).waits_for == (
        "rank 1 on node-1 to import and begin the training function"
    )
    many = look(forming(), members(*["launched"] * 7)).waits_for
    assert many.startswith("rank 0 on node-0, ") and "rank 3 on node-3 and 3 more to" in many


def test_stages_keep_their_times_and_the_last_one_goes_on() -> None:
    stages = look(running(), at=BEGAN + 8).stages
    assert stages == (
        StageView("executors", 2.0, False),
        StageView("start", 3.0, False),
        StageView("training", 3.0, True),
    )


def test_nothing_is_waited_for_while_all_train_and_the_last_ones_are_when_others_have_finished() -> None:
    assert look(running(), members("running", "running")).waits_for == ""
    assert look(running(), members("finished", "running")).waits_for == "rank 1 on node-1 to finish"


def test_the_end_of_the_workers_and_then_the_last_files_are_waited_for() -> None:
    story = stopping()
    assert look(story).waits_for == "the end of the workers and their last files" and look(story).state == "closing"
    story.handle(Change("end"), Phase.FINISHED, BEGAN + 10)
    assert look(story).waits_for == "the last files of the run directory" and look(story).state == "closing"


def test_a_failure_that_is_being_found_out_is_told() -> None:
    story = running()
    story.handle(Change("phase", text="finding out who failed first"), Phase.SETTLING, BEGAN + 8)
    assert look(story).waits_for == "word of the worker that failed first" and look(story).state == "closing"


def test_the_clock_stops_with_the_run() -> None:
    story = closed(Phase.FINISHED, accuracy=0.5)
    assert look(story, at=BEGAN + 11).seconds == look(story, at=BEGAN + 500).seconds == 11.0
    assert not any(stage.active for stage in look(story).stages) and look(story).waits_for == ""


# -- numbers


def test_steps_and_rate_and_the_latest_metrics() -> None:
    view = look(running())
    assert view.progress == (("step", "40"), ("steps/s", "20.0")) and view.metrics == (("loss", "0.3333"),)


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
    assert story.step == 40 and look(story).metrics == (("loss", "0.3333"), ("lr", "0.5"))


def test_what_the_function_returned_is_shown_without_what_is_no_number_or_short_text() -> None:
    view = look(
        closed(Phase.FINISHED, accuracy=0.98765, kept=True, digest="ab12", curve=[1, 2], log="x/log", t="x" * 99)
    )
    assert view.result == (("accuracy", "0.9877"), ("kept", "True"), ("digest", "ab12"))


def test_many_metrics_and_long_ones_stay_in_bounds() -> None:
    story = running()
    story.handle(Change("report", 0, metrics={f"m{k}" * 30: "v" * 500 for k in range(50)}), Phase.RUNNING, BEGAN)
    shown = look(story).metrics
    assert len(shown) == METRICS + 1 and shown[-1] == ("…", f"{51 - METRICS} more")
    assert max(len(text) for pair in shown for text in pair) <= 60


@pytest.mark.parametrize(
    ("value", "text"), [(0.000012345, "1.234e-05"), (float("nan"), "nan"), (7, "7"), (None, "None"), ("a", "a")]
)
def test_numbers_are_short(value: object, text: str) -> None:
    assert number(value) == text


# -- workers


def test_a_row_a_worker_and_the_rest_of_many_is_counted() -> None:
    found = members(*["running"] * 60, "failed")
    view = look(running(), found)
    assert len(view.workers) == ROWS and view.workers[-1].state == "failed" and view.workers[-1].rank == "60"
    assert view.workers_left == f"{61 - ROWS} more: {61 - ROWS} running"


def test_gpus_and_steps_are_shown() -> None:
    found = members("running", "running")
    found[1].gpu_indices, found[1].step = (2, 3), 17
    rows = look(running(), found).workers
    assert (rows[0].gpus, rows[0].step) == ("–", "–") and (rows[1].gpus, rows[1].step) == ("2,3", "17")


def test_workers_whose_group_ended_before_them_were_stopped_and_the_one_that_vanished_is_lost() -> None:
    states = [row.state for row in look(closed(Phase.FAILED, failure()), members("running", "running")).workers]
    assert states == ["stopped", "lost"]
    states = [row.state for row in look(closed(Phase.FAILED, failure()), members("running", "failed")).workers]
    assert states == ["stopped", "failed"]


# -- trouble


def test_a_failure_shows_the_log_of_the_rank_that_failed_not_the_chiefs() -> None:
    story = closed(Phase.FAILED, failure(log_tail="\n".join(f"line {k}" for k in range(100)), remote_traceback="no"))
    story.handle(Change("log", 0, "the chief says\n"), Phase.FAILED, BEGAN)
    view = look(story)
    assert view.state == "failed" and view.cause == "rank 1 on node-1 failed first: ValueError: bad"
    assert view.log_title == "end of the log of rank 1"
    assert len(view.log) == TAIL_LINES and view.log[-1] == "line 99"


def test_without_a_log_the_traceback_is_shown_and_without_both_nothing() -> None:
    assert look(closed(Phase.FAILED, failure(remote_traceback="Traceback:\n  x"))).log == ("Traceback:", "  x")
    view = look(closed(Phase.FAILED, failure()))
    assert view.log == () and view.log_title == ""


def test_a_cancelled_run_is_cancelled_and_any_other_error_is_told_as_it_is() -> None:
    view = look(closed(Phase.CANCELLED, RunCancelled("run app_1 was cancelled: interrupted")))
    assert (view.state, view.cause) == ("cancelled", "run app_1 was cancelled: interrupted")
    view = look(closed(Phase.FINISHED, ValueError("metric_key='a' is missing")))
    assert (view.state, view.cause) == ("failed", "metric_key='a' is missing")


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
