"""A view as HTML and as text: everything is there, nothing of a run is taken for markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from hopsml.cluster.gang import Phase
from hopsml.cluster.run_state import Change
from hopsml.errors import WorkerFailed
from hopsml.notebook import html, text
from hopsml.notebook.story import Story
from tests.notebook.stories import BEGAN, closed, forming, look, members, running, stopping, waiting

pytestmark = pytest.mark.fast

VOID = {"br", "hr", "img"}
EVIL = "<script>alert('x')</script><img src=x onerror=\"y()\"> & </pre></div>"


class Page(HTMLParser):
    """The fragment as a browser would read it: elements, attributes, text; every element is closed in order."""

    def __init__(self, fragment: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(fragment)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def stories() -> dict[str, Story]:
    failed = WorkerFailed("m", rank=1, host="node-1", cause="ValueError: x", log_tail="in train\nValueError: x\n")
    return {
        "waiting": waiting(),
        "forming": forming(),
        "running": running(),
        "stopping": stopping(),
        "finished": closed(Phase.FINISHED, accuracy=0.5),
        "failed": closed(Phase.FAILED, failed),
    }


@pytest.mark.parametrize("name", stories())
def test_what_the_view_holds_stands_in_both(name: str) -> None:
    view = look(stories()[name], members("running", "launched"))
    page, plain = Page(html.render(view)).text, text.render(view)
    for part in (view.title, view.run_id, view.state, view.waits_for, view.run_dir, view.cause, *view.log, "node-1"):
        assert part in page and part in plain
    for label, value in view.progress + view.metrics + view.result:
        assert f"{label} {value}" in page and f"{label} {value}" in plain


@pytest.mark.parametrize("name", stories())
def test_it_is_one_fragment_of_plain_elements_that_a_sanitizer_lets_through(name: str) -> None:
    fragment = html.render(look(stories()[name], members("running")))
    page = Page(fragment)
    assert page.tags <= {"div", "span", "table", "thead", "tbody", "tr", "th", "td", "pre"}
    assert page.attributes == {"style"} and "http" not in fragment and "url(" not in fragment


def evil_story() -> Story:
    story = running()
    story.handle(Change("report", 0, metrics={EVIL: EVIL}), Phase.RUNNING, BEGAN)
    story.handle(Change("note", text=EVIL), Phase.RUNNING, BEGAN)
    story.handle(Change("log", 0, EVIL + "\n"), Phase.RUNNING, BEGAN)
    story.waiting = EVIL
    return story


def test_nothing_of_a_run_becomes_markup() -> None:
    found = members("running")
    found[0].host = found[0].executor_id = EVIL
    for story in (evil_story(), waiting()):
        story.waiting = EVIL
        page = Page(html.render(look(story, found)))
        assert "script" not in page.tags and "img" not in page.tags and page.attributes == {"style"}
        assert "<script>alert('x')</script>" in page.text
    error = WorkerFailed("m", rank=0, host=EVIL, cause=EVIL, log_tail=EVIL)
    page = Page(html.render(look(closed(Phase.FAILED, error, **{EVIL: EVIL}), found)))
    assert "script" not in page.tags and page.text.count("<script>") >= 3


def test_titles_and_directories_are_escaped_too() -> None:
    from dataclasses import replace

    view = replace(look(running()), title=EVIL, run_id=EVIL, run_dir=EVIL, workers_left=EVIL)
    assert "script" not in Page(html.render(view)).tags


def test_the_text_has_aligned_columns_and_no_open_line() -> None:
    lines = text.render(look(running(), members("running", "running"), at=BEGAN + 8)).splitlines()
    assert lines[0] == "digits (app_1): running, 8.0 s"
    assert lines[1] == "executors 2.0 s -> start 3.0 s -> training 3.0 s"
    assert lines[2] == "step 40  steps/s 20.0  loss 0.3333"
    assert re.match(r"rank  host    executor  GPUs  state    step$", lines[3])
    assert re.match(r"0     node-0  1         –     running  –$", lines[4])
    assert lines[-1] == "run directory: hdfs://nn/Experiments/app_1"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.04, "0.0 s"), (59.94, "59.9 s"), (60, "1 min 00 s"), (3599, "59 min 59 s"), (7500, "2 h 05 min")],
)
def test_durations(seconds: float, shown: str) -> None:
    assert html.duration(seconds) == shown


def test_a_run_without_a_name_is_not_named_twice() -> None:
    from dataclasses import replace

    view = replace(look(running()), title="app_1")
    assert (
        text.render(view).startswith("app_1: running") and Page(html.render(view)).text.count("app_1") == 2
    )  # and its path
