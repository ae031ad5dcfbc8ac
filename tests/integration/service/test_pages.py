"""Tests of the page in a real browser: display, keys, and escaped malicious names."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hopsml.service.rest import page_files
from tests.helpers import leaks
from tests.helpers.clock import END_S
from tests.helpers.service.project import ProjectOnDisk
from tests.helpers.service.searching import searched
from tests.integration.service.tabs import HOSTILE, NARROW, WIDE, Tab, until, violations

pytestmark = pytest.mark.local


# What can be pressed and is less than 24 pixels high or wide; links within a line of text need not be.
SMALL = """[...document.querySelectorAll(":is(main, .top) :is(button, a, input, select, summary)")].filter((one) => {
  const { width, height } = one.getBoundingClientRect();
  const isShown = width > 0 && getComputedStyle(one).clipPath === "none" && one.checkVisibility();
  return isShown && getComputedStyle(one).display !== "inline" && (width < 23.5 || height < 23.5);
}).map((one) => one.outerHTML.slice(0, 120))"""


FIND_ERROR = ".tools ~ .error-message"  # not that of the whole page, which misses the server as well


def wanted(number: int, rate: float) -> dict[str, Any]:
    """Return arguments and specification of a run."""
    return {"arguments": {"lr": rate}, "spec": {"group": {"min_size": number}}}


def fill(project: ProjectOnDisk) -> None:
    """Create runs with everything that a page can show."""
    for number, rate in enumerate([0.1, 0.2, 0.4]):
        run = project.run(f"app_{number}", **wanted(number, rate), started=1000.0 + number, outputs={"accuracy": rate})
        run.report_all("loss", [2 / (1 + rate * step) for step in range(50)])
        run.print(0, *(f"2026-11-27 04:{n // 60:02}:{n % 60:02} INFO step {n}" for n in range(3000)))
        run.print(1, "2026-11-27 04:00:30 WARNING slow", "2026-11-27 04:00:31 ERROR \x1b[1mbroken\x1b[0m")
        run.write(
            "status.json",
            {"state": "FINISHED", "seconds": 9.0, "workers": [{"rank": 0, "state": "FINISHED", "step": 49}]},
        )
    failed = project.run(
        "app_failed", state="FAILED", cause="rank 1 on node2: ValueError: no", name="letters", started=900.0
    )
    failed.print(0, "what rank 0 says")
    failed.print(1, *(f"step {number}" for number in range(100)), "\x1b[1mwhat rank 1 says last\x1b[0m")
    workers = [{"rank": rank, "state": "FAILED"} for rank in (0, 1)]  # rank 0 in consequence
    error = "rank 1 failed: ValueError: no\n\n  File train.py, line 3, in train"
    ended = {"state": "FAILED", "cause": "rank 1 on node2: ValueError: no", "error": error, "workers": workers}
    failed.write("status.json", ended)
    searched(project, "app_search", name="digits-search", started=1100.0)
    for number, text in enumerate(HOSTILE):
        names = {"name": text, "user": text, "description": text, "source": text, "arguments": {text: text}}
        run = project.run(f"hostile_{number}", state="FAILED", cause=text, started=100.0, outputs={text: 0.5}, **names)
        run.report(0, **{text: 1.0})
        run.report(1, **{text: 2.0})
        run.print(0, text)
        (run.folder / text.replace("/", "∕")).mkdir()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> ProjectOnDisk:
    """Create a project with runs of all kinds."""
    project = ProjectOnDisk(tmp_path_factory.mktemp("pages") / "digits")
    fill(project)
    return project


@pytest.fixture(scope="module")
def address(filled: ProjectOnDisk) -> Iterator[str]:
    """Start a server for that project and yield its address with the token."""
    with serving(filled) as (address, _):
        yield address


@contextlib.contextmanager
def serving(project: ProjectOnDisk) -> Iterator[tuple[str, Callable[[], None]]]:
    """Run a server for a project; yield its address with the token, and a function that ends it."""
    command = [sys.executable, "-m", "hopsml", "ui", "--no-browser", project.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None

        def end() -> None:
            process.terminate()
            assert process.wait(END_S) == 0

        yield process.stdout.readline().strip(), end
        end()


def test_runs_are_filtered_sorted_and_selected_with_the_keyboard(tab: Tab) -> None:
    page = tab.open("")
    rows = page.locator("table.runs tbody tr")
    page.get_by_label("Filter runs").fill("digits lr>0.1")
    until(page, "document.querySelectorAll('table.runs tbody tr').length === 2")
    assert "filter=digits+lr%3E0.1" in page.url
    page.get_by_role("button", name="Metric").press("Enter")
    until(page, "document.querySelector('table.runs tbody .metric').textContent.includes('0.4')")
    page.get_by_role("checkbox", name=re.compile("Select digits .app_1.")).press("Space")
    page.get_by_role("checkbox", name=re.compile("Select digits .app_2.")).press("Space")
    page.locator("main").get_by_role("link", name="Compare 2").press("Enter")
    page.wait_for_selector("h1:has-text('Compare 2 runs')")
    page.get_by_label("Value at step").fill("10")
    page.evaluate(  # the page is drawn again while a user types
        """() => { const slider = document.querySelector('input[type=range]');
        slider.value = 0.5; slider.dispatchEvent(new Event('input', {bubbles: true})); }"""
    )
    until(page, "document.querySelector('.tools output').textContent === '0.50'")
    page.get_by_label("Value at step").press("Enter")
    page.wait_for_selector("th:has-text('At step 10')")
    assert rows.count() == 0 and page.locator("canvas").count() == 1


@pytest.mark.variant
def test_page_without_a_job_service_does_not_mention_jobs(tab: Tab) -> None:
    page = tab.open("")
    page.wait_for_selector("h1:has-text('Runs')")
    links = page.get_by_role("navigation", name="Pages").get_by_role("link").all_inner_texts()
    assert links == ["Runs", "Compare", "Models", "Servings"]


@pytest.mark.variant
def test_empty_run_list_offers_to_clear_the_filter(tab: Tab) -> None:
    page = tab.open("?filter=nothing-like-it")
    page.wait_for_selector("text=No run matches the filter")
    page.get_by_role("button", name=re.compile("Show all")).click()
    page.wait_for_selector("table.runs tbody tr")


def test_curves_are_drawn_with_smoothing_and_other_axes(tab: Tab) -> None:
    page = tab.open("run/app_1")
    page.wait_for_selector(".card canvas")
    for change in ("Logarithmic scale", None):
        if change:
            page.get_by_label(change).check()
    page.get_by_label("Smoothing").press("ArrowRight")
    page.get_by_label("X axis").select_option("time")
    page.wait_for_selector(".card canvas")
    assert page.get_by_role("img", name=re.compile("loss: 50 values")).count() == 1


def test_logs_are_filtered_searched_and_followed(tab: Tab) -> None:
    page = tab.open("run/app_1/logs")
    page.wait_for_selector(".log .text:has-text('step 0')")
    assert page.locator(".log .row").count() < 100, "only what is seen are elements"
    page.get_by_label("Find in these lines").fill("STEP 2500")
    page.get_by_label("Find in these lines").press("Enter")
    page.wait_for_selector(".row.found mark:has-text('step 2500')")
    page.get_by_role("button", name="Follow").click()
    page.wait_for_selector(".log .text:has-text('step 2999')")
    page.get_by_role("region", name="Log").press("Home")
    page.wait_for_selector(".log .text:has-text('step 0')")
    assert page.get_by_role("button", name="Follow").get_attribute("aria-pressed") == "false"
    page.get_by_label("Minimum level").select_option("warning")
    until(page, "document.querySelectorAll('.log .row').length === 2")
    page.get_by_label("Filter lines by text").fill("broken")
    until(page, "document.querySelectorAll('.log .row').length === 1")
    page.wait_for_selector(".log .row .text:has-text('ERROR')")  # a row is shown before its text has been read
    assert page.locator(".log .row .text").inner_text() == "2026-11-27 04:00:31 ERROR broken", "control sequences"


def test_running_run_is_updated_live(tab: Tab, filled: ProjectOnDisk) -> None:
    run = filled.run("app_live", state=None, name="live", started=2000.0)
    run.report(0, loss=3.0)
    page = tab.open("run/app_live")
    page.wait_for_selector(".state.RUNNING:has-text('running')")
    run.report(1, loss=1.25)
    page.wait_for_selector(".card .value:has-text('1.25')")
    run.write("status.json", {"state": "CANCELLED", "seconds": 1.0, "cause": "enough"})
    page.wait_for_selector(".error-message:has-text('enough')")


def test_failed_run_opens_on_its_error_and_the_log_end_of_the_failed_rank(tab: Tab) -> None:
    page = tab.open("?filter=letters")
    page.get_by_role("link", name="letters").press("Enter")
    page.get_by_role("region", name="Error").wait_for()
    assert "line 3, in train" in page.get_by_role("region", name="Error").inner_text()
    end = page.get_by_role("region", name="End of the log")
    end.wait_for()
    is_at_end = "pre => pre.scrollTop > 0 && pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 1"
    assert end.locator("pre").evaluate(is_at_end), "the last line is hidden"
    assert end.inner_text().endswith("what rank 1 says last") and "step 3\n" not in end.inner_text()
    page.get_by_role("heading", name="Last lines of rank 1").wait_for()
    page.get_by_role("link", name="Curves").press("Enter")
    page.wait_for_selector("h2:has-text('No metrics reported')")
    page = tab.open("run/app_1")
    page.wait_for_selector(".card canvas")
    assert page.get_by_role("link", name="Error").count() == 0


@pytest.mark.variant
def test_search_page_shows_its_best_value_at_the_top(tab: Tab) -> None:
    page = tab.open("run/app_search")
    page.wait_for_selector(".head .properties div:has(dt:text-is('Best accuracy')) dd:text-is('1')")
    page.wait_for_selector(".properties div:has(dt:text-is('Best trial')) dd:has-text('3: accuracy 1 (max)')")


@pytest.mark.variant
def test_function_arguments_come_first_in_differing_settings(tab: Tab) -> None:
    page = tab.open("compare?run=app_0&run=app_1")
    page.get_by_role("heading", name="Settings that differ").wait_for()
    named = page.locator("table:has(caption:text-is('Settings that differ')) th[scope=row]").all_inner_texts()
    assert named == ["arguments lr", "specification group.min_size"]


@pytest.mark.variant
def test_rank_column_of_a_log_has_a_heading(tab: Tab) -> None:
    page = tab.open("run/app_1/logs")
    page.get_by_role("region", name="Log, each line with its rank").wait_for()
    head, number = (page.locator(f"{place} .where").first.bounding_box() for place in (".log-head", ".log .row"))
    assert page.locator(".log-head").inner_text() == "rank" and head["x"] == number["x"]


@pytest.mark.variant
@pytest.mark.parametrize("tab", [(NARROW, "light")], indirect=True, ids=["narrow"])
def test_controls_are_large_enough_for_touch(tab: Tab) -> None:
    tabs = ("", "/workers", "/logs", "/configuration", "/files")
    for place in ("", *(f"run/app_1{one}" for one in tabs), "run/app_search", "run/app_failed", "compare?run=app_1"):
        page = tab.open(place)
        until(page, "!document.querySelector('main').textContent.includes('Loading')")
        assert page.evaluate(SMALL) == [], place


@pytest.mark.variant
def test_trials_of_a_search_are_filtered_by_brushing(tab: Tab) -> None:
    page = tab.open("run/app_search")
    page.wait_for_selector("svg.parallel path.best")
    assert page.locator("main tbody tr").count() == 6
    grip = page.locator("svg.parallel .grip").first.bounding_box()
    page.mouse.move(grip["x"] + 14, grip["y"] + 12)
    page.mouse.down()
    page.mouse.move(grip["x"] + 14, grip["y"] + grip["height"] / 2, steps=4)
    page.mouse.up()
    until(page, "document.querySelectorAll('main tbody tr').length < 6")
    page.get_by_role("button", name="Show all trials").click()
    page.get_by_text("Filter by value").click()
    page.get_by_label("act").select_option("gelu")
    until(page, "document.querySelectorAll('main tbody tr').length === 3")
    page.get_by_role("link", name="2", exact=True).or_(page.locator("main tbody a").first).first.click()
    page.wait_for_selector(".log .text:has-text('speaks')")


@pytest.mark.variant
def test_files_are_previewed_and_folders_opened(tab: Tab) -> None:
    page = tab.open("run/app_1/files")
    page.get_by_role("button", name="run.json").click()
    page.wait_for_selector(".preview pre:has-text('collective_all_reduce')")
    page.get_by_role("link", name="logs/").click()
    page.wait_for_selector("text=g0-rank0.log")


@pytest.mark.variant
def test_selected_theme_is_stored(tab: Tab) -> None:
    page = tab.open("")
    page.get_by_role("button", name="Use the dark theme").click()
    page.reload()
    page.wait_for_selector("html[data-theme=dark]")


def test_malicious_texts_are_escaped_on_run_pages(tab: Tab) -> None:
    ids = [f"hostile_{number}" for number in range(len(HOSTILE))]
    tabs = [f"run/{name}{one}" for name in ids for one in ("", "/configuration", "/logs", "/files")]
    for place in ("?filter=hostile", *tabs, "compare?" + "&".join(f"run={name}" for name in ids)):
        page = tab.open(place)
        until(page, "!document.querySelector('main').textContent.includes('Loading')")
        assert page.evaluate("window.hit") is None, place
        assert page.locator("main :is(script, img, svg[onload], [onerror])").count() == 0, place


@pytest.mark.parametrize(
    "tab",
    [(WIDE, "light"), pytest.param((NARROW, "dark"), marks=pytest.mark.variant)],
    indirect=True,
    ids=["wide", "narrow"],
)
def test_run_pages_have_no_serious_axe_violation_and_fit_the_window(tab: Tab) -> None:
    tabs = ("", "/workers", "/logs", "/configuration", "/files")
    for place in ("", *(f"run/app_1{one}" for one in tabs), "run/app_search", "compare", "compare?run=app_1&run=app_2"):
        page = tab.open(place)
        until(page, "!document.querySelector('main').textContent.includes('Loading')")
        page.wait_for_load_state("load")
        assert violations(page) == [], place
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), place


@pytest.mark.variant
@pytest.mark.parametrize("tab", [(NARROW, "light")], indirect=True, ids=["narrow"])
def test_trials_fit_a_narrow_window_and_can_be_sorted(tab: Tab) -> None:
    page = tab.open("run/app_search")
    frame = page.get_by_role("region", name="Trials")
    frame.wait_for()
    assert frame.evaluate("frame => frame.scrollWidth <= frame.clientWidth")
    assert frame.locator("td[data-label=Step]").count() == 6
    frame.get_by_role("button", name="Trial", exact=True).click()
    until(page, "document.querySelector('main tbody a').textContent === '5'")


WEB = Path(page_files.__file__).parents[1] / "web"


@pytest.mark.parametrize(
    ("marks", "labels"),
    [
        ([457.4, 457.402, 457.404, 457.406], ["457.4", "457.402", "457.404", "457.406"]),
        ([0, 0.5, 1, None], ["0", "0.5", "1", ""]),
        ([0, 0.0005], ["0", "5.000e−4"]),
    ],
)
def test_labels_of_an_axis_differ(tab: Tab, marks: list[float | None], labels: list[str]) -> None:
    page = tab.open("")
    numbers = re.sub(r"^export .*", "", (WEB / "format.js").read_text(), flags=re.M)
    found = re.search(r"^function markLabels.*?^}", (WEB / "parts" / "chart.js").read_text(), re.M | re.S)
    assert found is not None
    made = page.evaluate(f"(marks) => {{ {numbers}\n{found[0]}\nreturn markLabels(marks); }}", marks)
    assert made == labels


def test_page_works_below_a_proxy_path(browser: Any, address: str, tmp_path: Path) -> None:
    from tests.integration.service.prefix_proxy import prefixed

    with prefixed(address, "/proxy/8888") as below, leaks.not_of_this_test():
        context = browser.new_context()
        tab = Tab(context, below)
        tab.open("run/app_1").wait_for_selector(".card canvas")
        tab.page.wait_for_selector(".live:has-text('live')")
        context.close()
    assert tab.console == []


def test_preview_and_log_search_that_fail_show_the_error_with_its_remedy(browser: Any, project: ProjectOnDisk) -> None:
    run = project.run("app_1")
    run.print(0, "one line")
    gone = run.folder / "note.txt"
    gone.write_text("a note")
    with serving(project) as (address, end), leaks.not_of_this_test():
        context = browser.new_context()
        tab = Tab(context, address)
        page = tab.open("run/app_1/files")
        page.get_by_role("button", name="note.txt").wait_for()
        gone.unlink()
        page.get_by_role("button", name="note.txt").click()
        page.wait_for_selector(".preview .error-message:has-text('could not be loaded (status 404)')")
        assert "Download the file" in page.locator(".preview .error-message").inner_text()
        page = tab.open("run/app_1/logs")
        page.wait_for_selector(".log .text:has-text('one line')")
        end()
        page.get_by_label("Find in these lines").fill("line")
        assert page.locator(FIND_ERROR).count() == 0
        page.get_by_label("Find in these lines").press("Enter")
        page.wait_for_selector(f"{FIND_ERROR}:has-text('The server does not respond')")
        assert "Start `hopsml ui`" in page.locator(FIND_ERROR).inner_text()
        context.close()
    assert any("404" in line for line in tab.console)


@pytest.mark.variant
def test_first_paint_takes_less_than_three_seconds(tab: Tab) -> None:
    page = tab.open("")
    painted = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    print(json.dumps({"first_paint_ms": round(painted)}))
    assert painted < 3000  # a tenth of it where nothing else runs
