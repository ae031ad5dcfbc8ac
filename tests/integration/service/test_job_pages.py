"""Tests of the job pages in a real browser: running and waiting jobs, reasons, buttons, refusals."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hopsml.core.states import Lifecycle
from hopsml.tracking import provenance
from tests.helpers import leaks
from tests.helpers.cluster.workloads import wait_until
from tests.integration.service.conftest import Opens
from tests.integration.service.stage import Stage
from tests.integration.service.staged_server import HOSTILE_OWNER
from tests.integration.service.tabs import HOSTILE, NARROW, WIDE, press, until, violations

pytestmark = pytest.mark.local

GPUS = 16  # of the cluster


def test_waiting_job_shows_its_reason_and_is_paused_resumed_moved_and_cancelled(stage: Stage, opens: Opens) -> None:
    holder = stage.submit("resnet", GPUS, user="ben", time_limit="2h")
    stage.reaches(holder, Lifecycle.RUNNING)
    job = stage.submit("digits", 8)
    page = opens().open(f"job/{job.id}")
    page.wait_for_selector(".reason:has-text('needs 8 slots of 1 GPU')")
    assert page.locator(".reason p").inner_text() == stage.client("ana").why(job.id)
    assert f"ben's {holder.id} holds 16 until about" in page.locator(".reason p").inner_text()
    press(page, "Pause")
    page.wait_for_selector(".title .state.PAUSED")
    press(page, "Resume")
    page.wait_for_selector(".title .state.WAITING")
    press(page, "Move…")
    page.get_by_label("Priority").fill("90")
    page.get_by_label("Priority").press("Enter")
    page.wait_for_selector(".properties div:has(dt:text-is('Priority')) dd:text-is('90')")
    stage.ends(holder)
    page.wait_for_selector(".title .state.RUNNING")
    press(page, "Cancel")
    until(page, "document.activeElement.textContent === 'Keep job'")  # the keyboard begins at what is safe
    page.keyboard.press("Escape")
    until(page, "!document.querySelector('[role=alertdialog]') && document.activeElement.textContent === 'Cancel'")
    press(page, "Cancel")
    press(page, "Cancel job")
    page.wait_for_selector(".title .state.CANCELLED")
    entries = page.locator(".timeline li:not(.of-task)").all_inner_texts()
    causes = (
        "submitted",
        "paused by ana",
        "resumed by ana",
        "slots allocated",
        "the driver is running",
        "cancelled by ana",
    )
    at = [next(index for index, line in enumerate(entries) if cause in line) for cause in causes]
    assert at == sorted(at)
    assert page.get_by_role("row", name="train").get_by_text("application_").count() == 1


@pytest.mark.variant
def test_overview_shows_running_and_waiting_jobs_and_free_gpus(stage: Stage, opens: Opens) -> None:
    holder = stage.submit("holder", 12, user="ben")
    stage.reaches(holder, Lifecycle.RUNNING)
    waits = stage.submit("waits", 8)
    page = opens().open("")
    page.wait_for_selector("h1:has-text('Overview')")
    names = page.get_by_role("navigation", name="Pages").get_by_role("link").all_inner_texts()
    assert names == ["Overview", "Jobs", "Cluster", "Data sets", "Runs", "Compare"]
    running, waiting = (page.get_by_role("region", name=name, exact=True) for name in ("Running", "Waiting"))
    row = running.get_by_role("row", name=holder.id)
    assert "ben" in row.inner_text() and "running" in row.inner_text()
    page.wait_for_selector(f"td.why:has-text('{holder.id} holds 12')")
    assert stage.client("ana").why(waits.id) in waiting.inner_text()
    assert "free in use" in " ".join(page.locator(".cluster .key-line").inner_text().split())
    assert "4 of 16 free" in page.get_by_role("region", name="Cluster").inner_text()
    bar = "document.querySelector('.meter .fill').getBoundingClientRect().width"
    share = page.evaluate(f"{bar} / document.querySelector('.meter .track').getBoundingClientRect().width")
    assert share == pytest.approx(0.25, abs=0.01)
    assert "This server manages the jobs" in page.get_by_role("region", name="Cluster").inner_text()
    stage.ends(holder)
    running.get_by_role("row", name=waits.id).wait_for()
    page.wait_for_selector("text=No waiting jobs.")


@pytest.mark.variant
def test_overview_shows_progress_and_recently_ended_jobs(stage: Stage, opens: Opens) -> None:
    failed_job = stage.submit("gone", 1)
    stage.reaches(failed_job, Lifecycle.RUNNING)
    stage.ends(failed_job, "FAILED ValueError: no such column")
    stage.reaches(failed_job, Lifecycle.FAILED)
    job = stage.submit("goes", 1)
    stage.reaches(job, Lifecycle.RUNNING)
    page = opens().open("overview")
    ended = page.get_by_role("region", name="Recently ended")
    row = ended.get_by_role("row").nth(1)
    row.get_by_role("link", name=failed_job.id).wait_for()
    assert "failed" in row.inner_text() and "no such column" in row.inner_text() and "ago" in row.inner_text()
    service = stage.client("ana").job(job.id).applications[0].tag.partition(f"-{job.serial}-")[0].rpartition("-")[2]
    run = stage.project.run(f"{job.id}-{service}-train_1", state=None, driver_process=provenance.process_identity())
    run.report(12, accuracy=0.75)
    run.write("driver.json", {"time": 1.0, "progress": {"done": 10, "total": 40, "unit": "step"}})
    page.reload()
    row_progress = page.get_by_role("region", name="Running").get_by_role("row", name=job.id).locator(".progress-of")
    row_progress.get_by_role("link", name="step 10 of 40").wait_for()
    assert (
        "accuracy 0.75" in row_progress.inner_text()
        and row_progress.locator(".fill").get_attribute("style") == "width: 25%;"
    )
    command = [sys.executable, "-m", "hopsml", "jobs", "ls"]
    known = {**os.environ, "HOPSML_SERVER": page.url.partition("#")[0], "HOPSML_TOKEN": stage.token("ana")}
    listed = subprocess.run(command, env=known, capture_output=True, text=True, check=True).stdout
    assert "step 10 of 40" in listed and "progress" in listed.splitlines()[0]
    page.get_by_role("link", name="Jobs", exact=True).press("Enter")
    page.get_by_role("row", name=job.id).get_by_role("link", name="step 10 of 40").wait_for()
    page.get_by_role("link", name=job.id, exact=True).press("Enter")
    row_progress = page.locator(".properties div:has(dt:text-is('Progress'))")
    row_progress.get_by_role("link", name="step 10 of 40").wait_for()
    row_progress.get_by_role("link").press("Enter")
    page.wait_for_selector(".head .properties div:has(dt:text-is('Step')) dd:text-is('10 of 40')")


@pytest.mark.variant
def test_only_available_actions_are_offered(stage: Stage, opens: Opens) -> None:
    job = stage.submit("offers", 1)
    stage.reaches(job, Lifecycle.RUNNING)
    page = opens().open(f"job/{job.id}")
    group = page.get_by_role("group", name="Actions")
    group.wait_for()
    assert group.get_by_role("button").all_inner_texts() == ["Pause", "Cancel", "Move…", "Clone"]
    stage.client("ana").pause(job.id)
    page.wait_for_selector(".title .state.PAUSED")
    assert group.get_by_role("button").all_inner_texts() == ["Resume", "Cancel", "Move…", "Clone"]
    stage.client("ana").cancel(job.id)
    page.wait_for_selector(".title .state.CANCELLED")
    assert group.get_by_role("button").all_inner_texts() == ["Clone"]
    assert page.get_by_text("did not start").count() == 0 and page.get_by_text("The job created no run.").count() == 1
    page = opens().open("jobs?text=offers")
    page.get_by_label(f"Select {job.id}", exact=True).press("Space")
    chosen = page.get_by_role("group", name="Actions on selected jobs")
    page.wait_for_selector("text=1 selected")
    assert chosen.get_by_role("button").count() == 0


@pytest.mark.variant
def test_jobs_are_filtered_paged_selected_and_changed_together(stage: Stage, opens: Opens) -> None:
    holder = stage.submit("full", GPUS, user="ben")
    stage.reaches(holder, Lifecycle.RUNNING)
    many = stage.submit("many", 1)
    client = stage.client("ana")
    for _ in range(55):
        client.clone(many.id)
    page = opens().open("jobs?text=many")
    until(page, "document.querySelectorAll('table.jobs tbody tr').length === 50")
    page.get_by_role("button", name="Load more").press("Enter")
    until(page, "document.querySelectorAll('table.jobs tbody tr').length === 56")
    newest = [int(text.rpartition("-")[2]) for text in page.locator("td.name").all_inner_texts()]
    assert newest == sorted(newest, reverse=True)
    page.get_by_label(f"Select {many.id}", exact=True).press("Space")
    press(page, "Pause 1")
    page.wait_for_selector(f"tr:has-text('{many.id}') .state.PAUSED")
    page.get_by_role("button", name="paused").press("Enter")
    until(page, "document.querySelectorAll('table.jobs tbody tr').length === 1")
    page.get_by_label("Select all listed jobs").press("Space")
    press(page, "Resume 1")
    page.wait_for_selector("text=No job matches the filter")
    press(page, "Show all jobs")
    until(page, "document.querySelector('[role=search] input').value === ''")
    for owner, count in (("ben", 1), ("ana", 50)):
        page.get_by_label("Owner").fill(owner)
        rows = "[...document.querySelectorAll('td.owner')]"
        until(page, f"{rows}.length >= {count} && {rows}.every((one) => one.textContent === '{owner}')")
    page.get_by_label("Select all listed jobs").press("Space")
    page.get_by_role("button", name="Cancel 50").press("Enter")
    press(page, "Keep jobs")
    page.get_by_role("button", name="Cancel 50").press("Enter")
    press(page, "Cancel jobs")
    page.wait_for_selector("[role=status]:has-text('Cancellation of 50 jobs requested')")
    until(page, "document.querySelectorAll('.state.CANCELLED').length >= 50")
    assert len(client.jobs(states=(Lifecycle.WAITING,), text="many")) == 6


@pytest.mark.variant
def test_refused_action_is_explained_where_it_was_tried(stage: Stage, opens: Opens) -> None:
    job = stage.submit("refused", 1)
    stage.reaches(job, Lifecycle.RUNNING)
    tab = opens("vera")
    page = tab.open(f"job/{job.id}")
    for name in ("Pause", "Clone"):
        press(page, name)
        page.wait_for_selector(".job-actions .error-message:has-text('vera is viewer, and this needs')")
        assert "ask an administrator" in page.locator(".job-actions .error-message").inner_text()
    page.get_by_role("link", name="All jobs").click()
    page.get_by_label(f"Select {job.id}", exact=True).press("Space")
    press(page, "Pause 1")
    page.wait_for_selector(f".job-actions .error-message:has-text('{job.id}: vera is viewer')")
    assert stage.client("ana").job(job.id).state == Lifecycle.RUNNING
    assert len(tab.console) == 3 and all("403" in line for line in tab.console), "a browser says so of each"
    tab.console.clear()
    own = opens()
    page = own.open(f"job/{job.id}")
    press(page, "Move…")
    page.get_by_label("Queue").fill("reserch")
    page.get_by_label("Queue").press("Enter")
    page.wait_for_selector(".job-actions .error-message:has-text('did you mean research')")
    assert all("400" in line for line in own.console)
    own.console.clear()


@pytest.mark.variant
def test_missing_job_is_reported_and_not_requested_again(stage: Stage, opens: Opens) -> None:
    tab = opens()
    page = tab.open("job/nothing-9999")
    page.wait_for_selector(".error-message:has-text('there is no job')")
    page.wait_for_timeout(2500)
    assert len(tab.console) == 1 and "404" in tab.console.pop()


@pytest.mark.variant
def test_driver_log_is_followed_and_searched(stage: Stage, opens: Opens) -> None:
    job = stage.submit("talks", 1, tasks=2)
    stage.prints(job, "".join(f"INFO step {step}\n" for step in range(3000)))
    stage.reaches(job, Lifecycle.RUNNING)
    page = opens().open(f"job/{job.id}/log")
    page.wait_for_selector(".log .text:has-text('step 2999')")
    assert page.locator(".log .row").count() < 100
    stage.prints(job, "10 %\r20 %\rlast words\n")
    page.wait_for_selector(".log .text:text-is('last words')")
    page.get_by_label("Find in these lines").fill("STEP 1500")
    page.get_by_label("Find in these lines").press("Enter")
    page.wait_for_selector(".row.found mark:has-text('step 1500')")
    assert page.get_by_role("button", name="Follow").get_attribute("aria-pressed") == "false"
    page.get_by_label("Driver of").select_option("evaluate")
    page.wait_for_selector("text=3 001 lines")
    page.get_by_role("link", name="Job file").click()
    page.wait_for_selector("pre:has-text('script: train.py')")


@pytest.mark.variant
def test_log_of_each_try_can_be_selected(stage: Stage, opens: Opens) -> None:
    job = stage.submit("again", 1, retries=1)
    stage.prints(job, "line\n")
    stage.reaches(job, Lifecycle.RUNNING)
    stage.ends(job, "FAILED")
    stage.reaches(job, Lifecycle.FAILED)
    page = opens().open(f"job/{job.id}/log")
    assert page.get_by_label("Try").locator("option").all_inner_texts() == ["newest", "1", "2"]
    with page.expect_response(lambda answer: "try=1" in answer.url) as requested:
        page.get_by_label("Try").select_option("1")
    assert requested.value.status == 200
    page.wait_for_selector(".log .text:text-is('line')")


@pytest.mark.variant
def test_job_page_links_to_the_runs_of_this_job_only(stage: Stage, opens: Opens) -> None:
    job = stage.submit("trains", 1)
    ours, theirs = f"{job.id}-0a1b2c3d-train_1", f"{job.id}-7-0a1b2c3d-train_1"
    for name in (ours, theirs):
        stage.project.run(name, name=f"run {name}", outputs={"accuracy": 0.5})
    page = opens().open(f"job/{job.id}")
    page.get_by_role("link", name=f"run {ours}").click()
    page.wait_for_selector(f"h1:has-text('run {ours}')")
    page = opens().open(f"job/{job.id}")
    page.get_by_role("link", name=f"run {ours}").wait_for()
    assert page.get_by_text(theirs).count() == 0


@pytest.mark.variant
def test_page_sends_no_requests_after_the_job_ended_or_the_page_was_left(stage: Stage, opens: Opens) -> None:
    job = stage.submit("quick", 1)
    stage.reaches(job, Lifecycle.RUNNING)
    page = opens().open(f"job/{job.id}")
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url) if "/api/v1/" in request.url else None)
    wait_until(lambda: page.wait_for_timeout(100) or len(requested) >= 2, "two looks while it runs")
    stage.ends(job)
    page.wait_for_selector(".title .state.FINISHED")
    page.wait_for_timeout(500)
    requested.clear()
    page.wait_for_timeout(2500)
    assert requested == []
    page.get_by_role("link", name="Overview").click()
    page.wait_for_selector("h1:has-text('Overview')")
    page.get_by_role("link", name="Compare").click()
    page.wait_for_selector("h1:has-text('Compare')")
    requested.clear()
    page.wait_for_timeout(2500)
    assert requested == []


@pytest.mark.variant
def test_page_receives_changes_and_is_current_after_a_sleep(stage: Stage, opens: Opens) -> None:
    job = stage.submit("sleeps", 1)
    stage.prints(job, "\x1b[31mfirst\x1b[0m \x1b]0;title\x07line\n")
    stage.reaches(job, Lifecycle.RUNNING)
    page = opens().page
    page.clock.install()
    page.reload()
    page.goto(f"{page.url.partition('#')[0]}#/job/{job.id}/log")
    page.wait_for_selector(".log .text:text-is('first line')")
    page.wait_for_selector(".title .state.RUNNING")
    page.wait_for_timeout(1000)
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url.partition("/api/")[2].partition("?")[0]))
    page.wait_for_timeout(1000)
    assert requested == [], "nothing has changed"
    page.clock.fast_forward("01:00:00")
    page.wait_for_timeout(500)
    streams = {"events", "v1/jobs/events", f"v1/jobs/{job.id}/log/events"}
    wait_until(
        lambda: page.wait_for_timeout(50) or streams | {f"v1/jobs/{job.id}"} <= set(requested), "all to be asked anew"
    )
    stage.prints(job, "second line\n")
    page.wait_for_selector(".log .text:text-is('second line')")
    assert page.locator(".log .row").count() == 2
    stage.ends(job)
    page.wait_for_selector(".title .state.FINISHED")


@pytest.mark.variant
def test_pages_without_jobs_explain_how_to_submit_one(tmp_path: Path, opens: Opens) -> None:
    with leaks.not_of_this_test():
        stage = Stage(tmp_path / "empty")
    page = opens(stage=stage).open("jobs")
    page.wait_for_selector("pre:has-text('hopsml jobs submit job.yaml')")
    page.goto(page.url.replace("#/jobs", "#/"))
    page.wait_for_selector("h2:has-text('No running or waiting jobs')")
    page.close()
    stage.close()


def test_malicious_texts_are_escaped_on_job_pages(stage: Stage, opens: Opens) -> None:
    job = stage.submit("hostile", 1, user=HOSTILE_OWNER)
    stage.reaches(job, Lifecycle.RUNNING)
    stage.prints(job, "\n".join(HOSTILE))
    stage.ends(job, "FAILED " + " ".join(HOSTILE))
    stage.reaches(job, Lifecycle.FAILED)
    tab = opens()
    for place in ("jobs?text=hostile", *(f"job/{job.id}/{one}" for one in ("details", "log", "file")), "overview"):
        page = tab.open(place)
        until(page, "!document.querySelector('main').textContent.includes('Loading')")
        assert page.evaluate("window.hit") is None, place
        assert page.locator("main :is(script, img, svg[onload], [onerror])").count() == 0, place
    page = tab.open(f"job/{job.id}")
    page.wait_for_selector(".error-message:has-text('<script>')")
    assert HOSTILE_OWNER in page.locator(".properties").inner_text()


@pytest.mark.variant
@pytest.mark.parametrize(
    ("size", "theme"),
    [(WIDE, "light"), pytest.param(NARROW, "dark", marks=pytest.mark.variant)],
    ids=["wide", "narrow"],
)
def test_job_pages_have_no_serious_axe_violation_and_fit_the_window(
    stage: Stage, opens: Opens, size: Any, theme: str
) -> None:
    holder = stage.submit("holder", 12, user="ben", tasks=1)
    stage.reaches(holder, Lifecycle.RUNNING)
    stage.prints(holder, "a line\n" * 50)
    failed = stage.submit("failed", 1)
    stage.ends(failed, "FAILED ValueError: " + "loss_became_nan" * 20)
    stage.reaches(failed, Lifecycle.FAILED)
    waits, paused = (stage.submit(name, 8) for name in ("waits", "paused"))
    stage.client("ana").pause(paused.id)
    stage.reaches(paused, Lifecycle.PAUSED)
    tab = opens("ana", size, theme)
    jobs = [f"job/{job.id}" for job in (waits, paused, failed)]
    for place in ("overview", "jobs", "jobs?text=nothing", *jobs, f"job/{holder.id}/log", f"job/{holder.id}/file"):
        page = tab.open(place)
        until(page, "!document.querySelector('main').textContent.includes('Loading')")
        if place in jobs[:2]:
            press(page, "Cancel" if place == jobs[0] else "Move…")
        assert violations(page) == [], place
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), place
        tables = page.locator(".table-frame:has(table.cards)").all()
        assert all(one.evaluate("frame => frame.scrollWidth <= frame.clientWidth") for one in tables), place
        assert tables or place not in jobs[2:], "the tasks of the failed job"


def test_code_of_a_job_is_shown_to_its_owner(stage: Stage, opens: Opens) -> None:
    (stage.folder / "code" / "lib").mkdir(exist_ok=True)
    (stage.folder / "code" / "lib" / "model.py").write_text(f"{HOSTILE[0]} = 1\n")
    job = stage.submit("coded", 1)
    page = opens("ana").open(f"job/{job.id}")
    page.get_by_role("link", name="Code").press("Enter")
    page.get_by_role("link", name="lib/").press("Enter")
    page.get_by_role("button", name="model.py").press("Enter")
    page.wait_for_selector(f"pre:has-text('{HOSTILE[0]} = 1')")
    assert page.evaluate("window.hit") is None
    tab = opens("ben")
    other = tab.open(f"job/{job.id}/code")
    other.wait_for_selector(".error-message:has-text('ben is user, and this needs operator')")
    assert len(tab.console) == 1 and "403" in tab.console.pop()
