"""Tests of a view as HTML and as text: complete, and with a run's texts escaped."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from hopsml.cluster.driver.run_state import Change
from hopsml.cluster.gang.events import Phase
from hopsml.core.states import Lifecycle
from hopsml.errors import RunCancelled, WorkerFailed
from hopsml.experiment.result import Result
from hopsml.experiment.searches.result import BestTrial, SearchResult
from hopsml.notebook import html, style
from hopsml.notebook.run_timeline import RunTimeline
from hopsml.notebook.view import Cell, ProgressView, Table
from tests.unit.notebook.timelines import STARTED_S, closed, forming, members, running, stopping, view_at, waiting

pytestmark = pytest.mark.fast

VOID = {"br", "hr", "img"}
# Attributes of a curve, which holds no text: a sanitizer that removes it removes no number.
DRAWN = {
    *("viewbox", "width", "height", "preserveaspectratio", "role", "aria-label", "d", "fill", "stroke", "opacity"),
    *("stroke-width", "stroke-linecap", "stroke-linejoin", "vector-effect"),
}
MALICIOUS = "<script>alert('x')</script><img src=x onerror=\"y()\"> & </pre></div>"


class Page(HTMLParser):
    """Elements, attributes and text of a fragment; asserts that elements are closed in order."""

    def __init__(self, fragment: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.links: list[str] = []
        self.text = ""
        self.feed(fragment)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.links += [str(value) for name, value in attrs if name == "href"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def timelines() -> dict[str, RunTimeline]:
    failed = WorkerFailed("m", rank=1, host="node-1", cause="ValueError: x", log_tail="in train\nValueError: x\n")
    return {
        "waiting": waiting(),
        "forming": forming(),
        "running": running(),
        "stopping": stopping(),
        "finished": closed(Phase.FINISHED, accuracy=0.5),
        "failed": closed(Phase.FAILED, failed),
        "with progress": with_progress(),
    }


def with_progress() -> RunTimeline:
    timeline = running()
    for k in range(5):
        timeline.handle(Change("progress", 0, "step", step=10 * k, total=100), Phase.RUNNING, STARTED_S + 8 + k)
    return timeline


@pytest.mark.parametrize("name", timelines())
def test_html_and_text_contain_everything_in_the_view(name: str) -> None:
    view = view_at(timelines()[name], members("RUNNING", "STARTING"))
    page, plain = Page(html.render(view)).text, html.render_text(view)
    for part in (view.title, view.run_id, view.state, view.waits_for, view.run_dir, view.cause, *view.log, "node-1"):
        assert part in page and part in plain
    for label, value in view.numbers + view.result:
        assert f"{label} {value}" in page and f"{label} {value}" in plain
    for one in view.curves:
        assert one.name in page and one.name in plain
        assert all(value in page and value in plain for value in (one.low, one.high, one.last))
    for fact in view.progress.facts if view.progress is not None else ():
        assert fact in page and fact in plain


@pytest.mark.parametrize("name", timelines())
def test_html_is_one_fragment_of_elements_that_a_sanitizer_accepts(name: str) -> None:
    fragment = html.render(view_at(timelines()[name], members("RUNNING")))
    page = Page(fragment)
    assert page.tags <= {"div", "span", "table", "thead", "tbody", "tr", "th", "td", "pre", "svg", "path"}
    assert page.attributes <= {"style", *DRAWN} and "http" not in fragment and "url(" not in fragment


def malicious_timeline() -> RunTimeline:
    timeline = running()
    for step in (1, 2):  # its name is that of a curve, too
        timeline.handle(Change("report", 0, metrics={MALICIOUS: float(step)}, step=step), Phase.RUNNING, STARTED_S)
    timeline.handle(Change("progress", 0, MALICIOUS, step=1, total=2), Phase.RUNNING, STARTED_S)
    timeline.handle(Change("report", 0, metrics={MALICIOUS: MALICIOUS}), Phase.RUNNING, STARTED_S)
    timeline.handle(Change("note", text=MALICIOUS), Phase.RUNNING, STARTED_S)
    timeline.handle(Change("log", 0, MALICIOUS + "\n"), Phase.RUNNING, STARTED_S)
    timeline.waiting = MALICIOUS
    return timeline


def test_texts_of_a_run_are_escaped_in_html() -> None:
    found = members("RUNNING")
    found[0].host = found[0].executor_id = MALICIOUS
    for timeline in (malicious_timeline(), waiting()):
        timeline.waiting = MALICIOUS
        page = Page(html.render(view_at(timeline, found)))
        assert "script" not in page.tags and "img" not in page.tags and page.attributes <= {"style", *DRAWN}
        assert "<script>alert('x')</script>" in page.text
    error = WorkerFailed("m", rank=0, host=MALICIOUS, cause=MALICIOUS, log_tail=MALICIOUS)
    page = Page(html.render(view_at(closed(Phase.FAILED, error, **{MALICIOUS: MALICIOUS}), found)))
    assert "script" not in page.tags and page.text.count("<script>") >= 3


def test_title_directory_and_table_are_escaped() -> None:
    from dataclasses import replace

    table = Table((MALICIOUS,), ((Cell(MALICIOUS),),), more=MALICIOUS)
    view = replace(view_at(running()), title=MALICIOUS, run_id=MALICIOUS, run_dir=MALICIOUS, table=table)
    assert "script" not in Page(html.render(view)).tags


def test_text_has_aligned_columns_and_no_trailing_open_line() -> None:
    lines = html.render_text(view_at(running(), members("RUNNING", "RUNNING"), at=STARTED_S + 8)).splitlines()
    assert lines[0] == "digits (app_1): RUNNING, 8.0 s"
    assert lines[1] == "executors 2.0 s -> start 3.0 s -> training 3.0 s"
    assert lines[2:4] == ["step 40  steps/s 20.0", "loss 0.3333  █▂▁ 0.3333 … 1"]
    assert re.match(r"rank  state    host    executor$", lines[4])
    assert re.match(r"0     RUNNING  node-0  1$", lines[5])
    assert lines[-1] == "run directory: hdfs://nn/Experiments/app_1"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.04, "0.0 s"), (59.94, "59.9 s"), (60, "1 min 00 s"), (3599, "59 min 59 s"), (7500, "2 h 05 min")],
)
def test_duration_is_formatted_with_units(seconds: float, shown: str) -> None:
    assert style.duration(seconds) == shown


def test_run_without_a_name_shows_its_id_once() -> None:
    from dataclasses import replace

    view = replace(view_at(running()), title="app_1")
    assert (
        html.render_text(view).startswith("app_1: RUNNING") and Page(html.render(view)).text.count("app_1") == 2
    )  # and its path


# -- curves, bars, colours


def test_curve_spans_the_full_height_and_marks_its_newest_point() -> None:
    drawn = html.svg([(0, 1.0), (1, 5.0), (2, 3.0)], 106, 46, "loss")
    assert 'd="M3.0 43.0 L53.0 3.0 L103.0 23.0"' in drawn and 'd="M103.0 23.0 l0.01 0"' in drawn
    assert "currentColor" in drawn and not re.search("#[0-9a-f]{3}|rgb", drawn)  # the page's own colour, in any theme


def test_curve_has_gaps_at_values_that_are_not_finite_and_needs_two_finite_ones() -> None:
    nan, inf = float("nan"), float("inf")
    assert html.svg([(0, 1.0), (1, nan), (2, inf)], 100, 40, "loss") == ""
    line = html.svg([(0, 1.0), (1, 2.0), (2, nan), (3, 1.0), (4, inf), (5, 2.0)], 100, 40, "loss").split(' d="')[2]
    assert line.partition('"')[0].count("M") == 3 and "nan" not in line and "inf" not in line


def test_curve_with_many_points_is_reduced() -> None:
    points = [(float(k), float(k % 97)) for k in range(5_000)]
    assert len(html.svg(points, 240, 44, "loss")) < 3_500


def test_progress_bar_length_is_proportional_to_the_share() -> None:
    assert "width:37.5%" in style.bar(0.375, "RUNNING", ["step 3 of 8"]) and "width:100.0%" in style.bar(
        7.0, "RUNNING", [""]
    )
    assert (
        html.progress_text(ProgressView(0.25, ("step 1 of 4", "25 %")))
        == "[######..................] step 1 of 4, 25 %"
    )


def luminance(colour: str) -> float:
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("state", Lifecycle)
def test_state_colours_have_sufficient_contrast_in_both_themes(state: Lifecycle) -> None:
    """As large, bold text must: 3 to 1 (WCAG 2.1, 1.4.3)."""
    own = luminance(style.state_colour(state)) + 0.05
    assert (luminance("#ffffff") + 0.05) / own > 4 and own / (luminance("#111111") + 0.05) > 4


def test_cancelled_or_stopped_states_are_not_red() -> None:
    red = style.state_colour("FAILED")
    view = view_at(
        closed(Phase.CANCELLED, RunCancelled("run app_1 was cancelled: enough")), members("RUNNING", "RUNNING")
    )
    page = html.render(view)
    assert "CANCELLED" in page and "STOPPED" in page and red not in page
    assert red in html.render(view_at(closed(Phase.FAILED, ValueError("x"))))


def test_font_sizes_and_distances_are_from_the_scales() -> None:
    for timeline in (*timelines().values(), malicious_timeline()):
        page = html.render(view_at(timeline, members("RUNNING", "FAILED")))
        assert set(re.findall(r"font-size:(\w+)", page)) <= {"15px", "13px", "12px"}
        for found in re.findall(r"(?:margin|padding|gap)[a-z-]*:([^;\"]+)", page):
            assert set(found.split()) <= {"0", "auto", "2px", *style.GAP}, found


@pytest.mark.parametrize(
    ("values", "bars"),
    [
        ([0.0, 1.0], "▁█"),
        ([0.0, 1e-310], "▁█"),
        ([1.7e308, -1.7e308], "█▁"),
        ([2.0, 2.0, float("nan")], "▁▁"),
    ],
)
def test_sparkline_is_drawn_for_any_numbers(values: list[float], bars: str) -> None:
    assert html.sparkline(values) == bars


def result_of_a_run(**facts: Any) -> Result:
    worker = {"rank": 0, "host": "node-1", "executor": "1", "gpu_indices": [], "state": "FINISHED"}
    known = {
        "name": "digits", "run_id": "app_1", "run_dir": "file:///p/app_1", "state": Lifecycle.FINISHED, "seconds": 12.5,
        "workers": [worker, worker], "steps_per_second": 21.5,
        "in_force": {"workers": 2, "formed": True, "by": "hopsml", "size": 2, "trained_alone": 2}, **facts,
    }  # fmt: skip
    metrics = {"accuracy": 0.975, "model": MALICIOUS, "log": "file:///p/app_1/logs/g0-rank0.log"}
    return Result("file:///p/app_1/events", metrics, **known)


def result_of_a_search(**facts: Any) -> SearchResult:
    rows = [
        {
            "number": number, "state": "completed" if number else "failed", "value": number / 10 if number else None,
            "step": 26 if number else None, "config": {"lr": 0.01 * number, "act": MALICIOUS},
        }
        for number in range(8)
    ]  # fmt: skip
    best = BestTrial(7, "abc", rows[7]["config"], 0.7, 26, {"accuracy": 0.7}, "hdfs://nn/p/app_2/trials/abc")
    known = {
        "name": "search", "run_id": "app_2", "run_dir": "hdfs://nn/p/app_2", "state": Lifecycle.FINISHED, "seconds": 90.0,
        "rows": rows, "metric": "accuracy", "direction": "max", "notes": ["no trial has completed"],
        "reason": "complete", "counts": {"completed": 7, "failed": 1}, **facts,
    }  # fmt: skip
    return SearchResult(best, **known)


def test_html_of_a_result_has_its_metrics_and_paths() -> None:
    page = Page(result_of_a_run()._repr_html_())
    for words in (
        "digits",
        "app_1",
        "FINISHED",
        "12.5 s",
        "accuracy",
        "0.975",
        "workers",
        "21.5",
        "workers trained separately",
    ):
        assert words in page.text, words
    assert MALICIOUS[:59] in page.text and page.tags <= {
        "div",
        "span",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "a",
    }
    assert page.links == ["file:///p/app_1", "file:///p/app_1/events", "file:///p/app_1/logs/g0-rank0.log"]


def test_html_of_a_search_result_has_the_best_configuration_and_trials() -> None:
    page = Page(result_of_a_search()._repr_html_())
    for words in ("best configuration", "0.07", "2 more trials", "no trial has completed"):
        assert words in page.text, words
    assert page.text.index("0.7") < page.text.index("0.6") and "hdfs://nn/p/app_2/trials/abc" in page.text
    assert page.links == [] and page.tags <= {"div", "span", "table", "thead", "tbody", "tr", "th", "td"}
    lowest = Page(result_of_a_search(direction="min")._repr_html_()).text
    assert lowest.index("0.2") < lowest.index("0.3")


def test_html_of_a_result_of_several_runs_has_a_row_for_each() -> None:
    several = Result(
        "file:///p/app_3", None, name="launch", run_id="app_3", run_dir="file:///p/app_3", state="FINISHED"
    )
    several.runs = [result_of_a_run(run_id=f"app_3-{number}") for number in range(7)]
    page = Page(several._repr_html_())
    assert "app_3-0" in page.text and "app_3-5" not in page.text and "2 more runs" in page.text
