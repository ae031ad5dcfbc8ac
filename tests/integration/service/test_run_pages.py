"""Tests of a live run's page in a real browser: slow workers, py-spy profiles, pictures, tables."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.clock import END_S
from tests.helpers.service.project import ProjectOnDisk, RunOnDisk
from tests.integration.service.tabs import HOSTILE, NARROW, WIDE, Tab, until, violations

pytestmark = pytest.mark.local

WORK = """
import time
def busy(end):
    return sum(n * n for _ in iter(lambda: time.monotonic() < end, False) for n in range(100))
def outer(end):
    return busy(end)
outer(time.monotonic() + 2)
"""
DRAWN = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="40" height="30" onload="window.hit=1">'
    '<script>window.hit=1</script><rect width="40" height="30" fill="green"/></svg>'
)


# Of the first chart: how many dots at its left and its right end are drawn; null before anything is.
BORDERS = """(() => {
  const canvas = document.querySelector(".chart canvas"), copy = new OffscreenCanvas(canvas.width, canvas.height);
  const pen = copy.getContext("2d", { willReadFrequently: true }); // without it Chromium complains
  pen.drawImage(canvas, 0, 0);
  const isDrawn = (value, at) => at % 4 === 3 && value > 0;
  const drawn = (x, wide) => pen.getImageData(x, 0, wide, canvas.height).data.filter(isDrawn).length;
  return drawn(0, canvas.width) ? [drawn(0, 1), drawn(canvas.width - 1, 1)] : null;
})()"""


def write_samples(run: RunOnDisk, rank: int, cpu: float, network: float = 0.0) -> None:
    """Write samples of a worker as its agent does: percent of a core, megabytes a second."""
    now = time.time()
    samples: list[dict[str, float]] = [
        {
            "time": now - 60 + 5 * number,
            "step": number,
            "cpu_utilization_percentage": cpu,
            "memory_usage_megabytes": 800.0 + number,
            "network_receive_megabytes": 5 * number * network,
            "network_transmit_megabytes": 0.0,
            "network_collective_receive_megabytes": 120.0 * number,
            "network_collective_transmit_megabytes": 60.0 * number,
        }
        for number in range(12)
    ]
    file = run.folder / "logs" / f"g0-rank{rank}.system.jsonl"
    file.write_text("".join(json.dumps(sample) + "\n" for sample in samples))


def running_run(project: ProjectOnDisk, run_id: str, cpus: list[float], loaded: int = -1) -> RunOnDisk:
    """Create a running run with one worker for each CPU usage."""
    run = project.run(run_id, state=None, started=time.time() - 90, workers=len(cpus))
    run.write("driver.json", {"time": time.time()})
    for rank, cpu in enumerate(cpus):
        run.print(rank, "begins")
        write_samples(run, rank, cpu, 90.0 if rank == loaded else 0.0)
    return run


def write_profiles(run: RunOnDisk) -> None:
    """Create a profile of a real process, and one with malicious names."""
    folder = run.folder / "profiles"
    folder.mkdir()
    (folder.parent / "work.py").write_text(WORK)
    file = folder / "rank-1-20261127T104500Z.speedscope.json"
    spy = [str(Path(sys.executable).parent / "py-spy"), "record", "--format", "speedscope", "--rate", "50"]
    spy += ["--output", str(file), "--", sys.executable, str(folder.parent / "work.py")]
    subprocess.run(spy, check=True, capture_output=True)
    file.write_text(json.dumps(samples_below(json.loads(file.read_text()), "outer")))
    frames = [{"name": text, "file": text, "line": 1} for text in HOSTILE]
    stacks = [list(range(number + 1)) for number in range(len(HOSTILE))]
    thread = {"type": "sampled", "samples": stacks, "weights": [1.0] * len(stacks)}
    content = json.dumps({"shared": {"frames": frames}, "profiles": [thread]})
    (folder / "rank-0-20261127T104400Z.speedscope.json").write_text(content)


def samples_below(profile: dict[str, Any], function: str) -> dict[str, Any]:
    """Return the samples of a profile below a function, without the interpreter's start."""
    (number,) = [place for place, frame in enumerate(profile["shared"]["frames"]) if frame["name"] == function]
    for thread in profile["profiles"]:
        both = zip(thread["samples"], thread["weights"], strict=True)
        retained = [(stack, weight) for stack, weight in both if number in stack]
        thread["samples"], thread["weights"] = [stack for stack, _ in retained], [weight for _, weight in retained]
    return profile


def write_files(run: RunOnDisk) -> None:
    """Create valid and invalid pictures and tables."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    for name in ("plot.png", "plot.jpg", "plot.gif"):
        Image.new("RGB", (40, 30), "green").save(run.folder / name)
    (run.folder / "plot.svg").write_text(DRAWN)
    (run.folder / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (run.folder / "rows.csv").write_text("name,loss\n" + f"{HOSTILE[1]},0.5\n" * 300)
    pq.write_table(pa.table({"n": range(1000), "word": ["x"] * 1000}), run.folder / "rows.parquet")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a server for a project with such runs and yield its address with the token."""
    project = ProjectOnDisk(tmp_path_factory.mktemp("run_pages") / "digits")
    run = running_run(project, "app_slow", [4.0, 5.0, 96.0, 4.0])
    write_profiles(run)
    write_files(run)
    running_run(project, "app_loaded", [30.0, 30.0, 30.0, 30.0], loaded=1)
    running_run(project, "app_even", [90.0, 91.0, 92.0])
    running_run(project, "app_many", [90.0] * 12)
    over = project.run("app_over", workers=2)
    ended = [{"rank": rank, "state": "FINISHED", "host": "127.0.0.1"} for rank in (0, 1)]
    over.write("status.json", {"state": "FINISHED", "seconds": 3.5, "workers": ended})
    over.report_all("rate", [0.00021 + 0.0000003 * step for step in range(101)])
    command = [sys.executable, "-m", "hopsml", "ui", "--no-browser", project.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.terminate()
        assert process.wait(END_S) == 0


def test_slow_rank_is_marked_in_the_ring_and_explained(tab: Tab) -> None:
    page = tab.open("run/app_slow/workers")
    page.get_by_role("heading", name="Rank 2 slows the others down").wait_for()
    assert page.locator(".ring .slow text").all_text_contents() == ["2"]
    assert page.locator(".ring .waits text").all_text_contents() == ["0", "1", "3"]
    assert page.locator(".ring .link").count() == 4 and page.locator(".ring .link.slow").count() == 0
    assert "it computes (96 % of a core) while the others wait (4 %)" in page.locator(".ring-of").inner_text()
    assert page.get_by_role("img", name=re.compile("4 workers in ring order. rank 2: it computes")).count() == 1
    cells = page.locator("td.network").all_inner_texts()
    assert [" ".join(cell.split()) for cell in cells] == ["collective 1.3 GB in, 660 MB out"] * 4


@pytest.mark.variant
def test_links_of_a_loaded_worker_are_marked(tab: Tab) -> None:
    page = tab.open("run/app_loaded/workers")
    page.get_by_role("heading", name="Rank 1 slows the others down").wait_for()
    titles = page.locator(".ring .link.slow title").all_text_contents()
    assert titles == ["from rank 0 to rank 1", "from rank 1 to rank 2"]
    assert "0 → 1, 1 → 2" in page.locator(".ring-of").inner_text()
    page = tab.open("run/app_even/workers")
    page.get_by_role("heading", name="No slow worker").wait_for()
    assert page.locator(".ring .slow, .ring .waits").count() == 0


@pytest.mark.variant
def test_workers_page_of_an_ended_run_states_that_slow_ranks_are_not_detected(tab: Tab) -> None:
    page = tab.open("run/app_over/workers")
    page.get_by_role("heading", name="Ring order").wait_for()
    text = page.locator(".ring-of").text_content()
    assert "all on 127.0.0.1" in text and "only detected while a run is running" in text


@pytest.mark.variant
def test_ring_height_grows_with_the_number_of_workers(tab: Tab) -> None:
    heights = {}
    for run in ("app_over", "app_even", "app_many"):
        page = tab.open(f"run/{run}/workers")
        page.locator(".ring").wait_for()
        heights[run] = page.locator(".ring-of").bounding_box()["height"]
    assert heights["app_over"] < 160 < heights["app_even"] < heights["app_many"]
    page = tab.open("run/app_over/workers")
    page.locator(".ring").wait_for()
    frame = page.locator(".ring").bounding_box()
    for drawn in page.locator(".ring :is(circle, text, path)").all():
        box = drawn.bounding_box()
        assert frame["x"] <= box["x"] and box["x"] + box["width"] <= frame["x"] + frame["width"]
        assert frame["y"] <= box["y"] and box["y"] + box["height"] <= frame["y"] + frame["height"]


@pytest.mark.variant
def test_chart_labels_are_not_cut_off(tab: Tab) -> None:
    page = tab.open("run/app_over")
    page.locator(".chart canvas").first.wait_for()
    until(page, f"({BORDERS}) !== null")
    left, right = page.evaluate(BORDERS)
    assert left == 0, "a label of the y axis goes on where the picture ends"
    assert right == 0, "a label of the x axis does"


@pytest.mark.variant
def test_flame_graph_starts_at_its_first_branch_and_is_navigated_by_keys(tab: Tab) -> None:
    page = tab.open("run/app_slow/profiles")
    page.get_by_role("button", name=re.compile("^rank-1-")).press("Enter")
    graph = page.get_by_role("region", name=re.compile("Flame graph of rank-1"))
    graph.locator(".own li", has_text="work.py:4").first.wait_for()  # the list of an earlier profile may be there still
    first = graph.locator(".box text").first.text_content()
    callers = graph.get_by_role("button", name=re.compile(r"Show \d+ caller"))
    callers.press("Enter")
    graph.get_by_role("button", name="Hide callers").wait_for()
    assert graph.locator(".box text").first.text_content() != first
    before = graph.locator(".box").count()
    graph.get_by_role("button", name=re.compile("^busy work.py")).first.press("Enter")
    until(page, f"document.querySelectorAll('.flame .box').length < {before}")
    assert graph.locator(".box text").first.text_content().startswith("busy work.py")
    graph.get_by_role("button", name=re.compile(r"Show all|Show \d")).press("Enter")
    until(page, f"document.querySelectorAll('.flame .box').length === {before}")


def test_pictures_are_displayed_without_running_their_scripts(tab: Tab) -> None:
    page = tab.open("run/app_slow/files")
    for name in ("plot.png", "plot.jpg", "plot.gif", "plot.svg"):
        page.get_by_role("button", name=name).press("Enter")
        page.get_by_role("img", name=name).wait_for()
        until(page, "document.querySelector('.preview img').naturalWidth === 40")
    assert page.evaluate("window.hit") is None
    page.get_by_role("button", name="broken.png").press("Enter")
    page.wait_for_selector("text=This image cannot be displayed")


@pytest.mark.variant
def test_heads_of_tables_are_displayed_as_tables(tab: Tab) -> None:
    page = tab.open("run/app_slow/files")
    page.get_by_role("button", name="rows.csv").press("Enter")
    rows = page.get_by_role("region", name="Rows of rows.csv")
    rows.get_by_role("columnheader", name="loss").wait_for()
    assert rows.get_by_role("cell", name=HOSTILE[1]).count() == 100 and page.evaluate("window.hit") is None
    assert page.locator(".preview .note").inner_text() == "The first 100 rows."
    page.get_by_role("button", name="rows.parquet").press("Enter")
    page.get_by_role("region", name="Rows of rows.parquet").get_by_role("cell", name="99", exact=True).wait_for()
    assert re.fullmatch(r"The first 100 rows of 1\D?000\.", page.locator(".preview .note").inner_text())


@pytest.mark.parametrize(
    "tab",
    [(WIDE, "dark"), pytest.param((NARROW, "light"), marks=pytest.mark.variant)],
    indirect=True,
    ids=["wide", "narrow"],
)
def test_live_run_pages_have_no_serious_axe_violation_fit_the_window_and_escape_names(tab: Tab) -> None:
    page = tab.open("run/app_slow/profiles")
    page.get_by_role("button", name=re.compile("^rank-0-")).press("Enter")
    page.get_by_role("region", name=re.compile("Flame graph of rank-0")).locator(".own li").first.wait_for()
    for place, shown in (("profiles", ".own li"), ("workers", ".ring .slow"), ("files", "text=rows.parquet")):
        tab.open(f"run/app_slow/{place}").wait_for_selector(shown)
        if place == "files":
            for name in ("plot.png", "rows.csv"):
                page.get_by_role("button", name=name).press("Enter")
                page.wait_for_selector(f".preview :is(img[alt='{name}'], [aria-label$='{name}'] td)")
                assert violations(page) == [], name
        assert violations(page) == [], place
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), place
    assert page.evaluate("window.hit") is None
